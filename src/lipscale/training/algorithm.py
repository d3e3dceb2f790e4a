"""Algorithm 1 of the paper, LiST: Phase I searches for L*, Phase II trains on all data with L* frozen."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lipscale import _processes as processes
from lipscale.attacks.ball import Box
from lipscale.bounds import get_lipschitz, set_lipschitz
from lipscale.calibration import LipschitzScheduler
from lipscale.losses import AdaptiveLoss
from lipscale.settings import TrainingSettings
from lipscale.training.batches import Batches
from lipscale.training.crossfit import CrossFit
from lipscale.training.defaults import decided
from lipscale.training.epoch import Epoch, StoppedEpoch, train_epoch
from lipscale.training.inference import predict
from lipscale.training.methods import method_of
from lipscale.training.optimizer import new_optimizer
from lipscale.training.plan import Plan

FIRST_EPOCHS = 0.1  # of the plan, before a loss learns from answers


class Training:
    """The parts of a training and how far it is: what Algorithm 1 works on, and what a checkpoint saves.

    The calibration set is a part of its own, or all `parts` of the training data in turns (cross-fitting). Without
    either there is nothing to steer by: the same loop, at a fixed L or without one.
    """

    def __init__(
        self,
        net: nn.Module,
        train: Batches,
        calibration: Batches | None,
        settings: TrainingSettings,
        *,
        parts: Sequence[Batches] = (),
        class_weights: Tensor | None = None,
        box: Box | None = None,
        identity: str = "",
    ) -> None:
        settings = decided(settings, net)
        self.net, self.train, self.calibration, self.settings = net, train, calibration, settings
        self.device, self.class_weights = next(net.parameters()).device, class_weights
        self.method = method_of(settings, box=box, constant=lambda: get_lipschitz(net))
        self.plan = Plan.of(settings)
        self.optimizer = new_optimizer(net, settings)
        self.scheduler: LipschitzScheduler | None = None
        if settings.is_constrained:
            assert settings.lipschitz is not None  # decided
            set_lipschitz(net, settings.lipschitz)
        self.cross_fit = CrossFit(self, parts) if parts else None
        if settings.method == "list" and (calibration is not None or self.cross_fit is not None):
            self.scheduler = LipschitzScheduler(
                net,
                rule=settings.feedback,
                lipschitz=settings.lipschitz,
                optimizer=self.optimizer,
                epochs=self.plan.phase1_epochs,
                ahead=self.plan.ahead,
                window=settings.window,
                tolerance=settings.tolerance,
            )
            twins = () if self.cross_fit is None else self.cross_fit.twins
            self.scheduler.followers = [(twin.net, twin.optimizer) for twin in twins]
        self.identity = identity  # what else a checkpoint must belong to
        self.history: list[Epoch] = []
        self.stopped: StoppedEpoch | None = None  # of an epoch that was asked to stop
        self._compiled = torch.compile(net) if settings.compile else net

    def forward(self, inputs: Tensor) -> Tensor:
        """The training network's logits, in float32 whatever it computes in."""
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)  # what convolutions are fastest on
        reduced = self.settings.precision == "bfloat16"
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=reduced):
            logits: Tensor = self._compiled(inputs)
        return logits.float() if reduced else logits

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The method's loss, of the whole batch where it is no mean over samples."""
        if self.method.is_of_a_batch:
            logits, labels = processes.whole(logits, self.weight_of(labels)), processes.gather(labels)
        return self.method.loss(logits, labels, weights=self.class_weights)

    def weight_of(self, labels: Tensor) -> float | Tensor:
        """What these samples weigh beside others of the same batch: the loss is a mean over the classes' weights."""
        return len(labels) if self.class_weights is None else self.class_weights[labels].sum()

    def calibration_logits(self) -> tuple[Tensor, Tensor] | None:
        """The logits and labels that T* is measured on: of D_cal, or out-of-fold of all data; none without either."""
        if self.cross_fit is not None:
            return self.cross_fit.logits(self)
        return None if self.calibration is None else predict(self.net, self.calibration)

    def adapt_loss(self, held_out: tuple[Tensor, Tensor] | None) -> None:
        """Let a loss that learns see answers to held-out data, or once, after the first epochs, to all data."""
        loss, epoch = self.method.loss, 1 + self.epochs_of(1)
        first = max(1, round(FIRST_EPOCHS * self.plan.phase1_epochs))
        if not isinstance(loss, AdaptiveLoss) or epoch < first:
            return
        if held_out is not None:
            loss.adapt(*held_out)
        elif epoch == first:
            loss.adapt(*predict(self.net, self.train))

    @property
    def calibration_size(self) -> int:
        """How many samples T* is measured on."""
        if self.scheduler is None:
            return 0
        return self.train.size if self.calibration is None else self.calibration.size

    def all_data(self) -> Batches:
        """D_train and D_cal together, for Phase II."""
        return self.train if self.calibration is None else self.train.join(self.calibration)

    def epochs_of(self, phase: int) -> int:
        """How many epochs of a phase are done."""
        return sum(epoch.phase == phase for epoch in self.history)

    @property
    def seconds(self) -> float:
        """How long the epochs took."""
        return sum(epoch.seconds for epoch in self.history)

    def record(self, phase: int, loss: float, accuracy: float, start: tuple[float, float]) -> Epoch:
        """Add an epoch to the history, which began at this time by both clocks."""
        last = self.scheduler.last if self.scheduler is not None and phase == 1 else None
        epoch = Epoch(
            phase=phase,
            epoch=1 + self.epochs_of(phase),
            loss=loss,
            train_accuracy=accuracy,
            lipschitz=get_lipschitz(self.net) if self.settings.is_constrained else None,
            temperature=None if last is None else last.temperature,
            temperature_error=None if last is None else last.temperature_error,
            calibration_accuracy=None if last is None else last.accuracy,
            seconds=time.perf_counter() - start[0],
            cpu_seconds=time.process_time() - start[1],
        )
        self.history.append(epoch)
        return epoch


def algorithm_1(
    training: Training,
    *,
    on_epoch: Callable[[Epoch], Any] = lambda epoch: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Both phases, from wherever the training is; the network ends in evaluation mode, ready to ship."""
    plan, scheduler = training.plan, training.scheduler

    # Phase I, dynamic search
    while training.epochs_of(1) < plan.phase1_epochs and not (scheduler is not None and scheduler.frozen):
        start = time.perf_counter(), time.process_time()
        # 1. optimise the weights under L_e
        loss, accuracy = train_epoch(training, training.train, phase=1, should_stop=should_stop)
        held_out = training.calibration_logits()
        if scheduler is not None:
            assert held_out is not None
            # 2. measure T*_e on D_cal, L_{e+1} <- L_e / T*_e, and project f onto it
            before = get_lipschitz(training.net)
            processes.require_same("a constant L", scheduler.step(*held_out))
            # 3. stop once L has settled, or with the budget: L*
            is_last = training.epochs_of(1) + 1 == plan.phase1_epochs
            if is_last or (plan.stops_early and scheduler.converged):
                scheduler.freeze()
            held_out = held_out[0] * (get_lipschitz(training.net) / before), held_out[1]  # as it answers now
        training.adapt_loss(held_out)
        on_epoch(training.record(1, loss, accuracy, start))

    # Phase II, data re-integration: D_train and D_cal together, with L frozen at L*
    if scheduler is None or training.settings.phase1_only:
        return
    total = training.all_data()
    # once, at its very beginning: an epoch that was stopped has a restarted optimizer already
    if training.settings.phase2_start == "restart" and training.epochs_of(2) == 0 and training.stopped is None:
        training.optimizer = new_optimizer(training.net, training.settings)
    while training.epochs_of(2) < plan.phase2_epochs:
        start = time.perf_counter(), time.process_time()
        loss, accuracy = train_epoch(training, total, phase=2, should_stop=should_stop)
        on_epoch(training.record(2, loss, accuracy, start))
