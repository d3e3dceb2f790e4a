"""Algorithm 1 of the paper: Phase I searches for L*, Phase II trains on all data with L* frozen."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from lipscale import _processes as processes
from lipscale._random import random_stream
from lipscale.attacks.ball import Box
from lipscale.bounds.constant import get_lipschitz, set_lipschitz
from lipscale.calibration.advice import cannot_steer, poor_resolution
from lipscale.calibration.feedback import Feedback, PaperFeedback, SteadyFeedback
from lipscale.calibration.temperature import fit_temperature, measure_temperature
from lipscale.data import Samples, as_input
from lipscale.data.batches import epoch_batches
from lipscale.errors import DivergedError, StoppedError
from lipscale.layers.evaluation import evaluation_mode
from lipscale.training.inference import predict_logits
from lipscale.training.methods import method_of
from lipscale.training.optimizer import LEFT_FOR_PHASE_TWO, WARM_UP, PlannedAdamW, new_optimizer, planned_share
from lipscale.training.settings import CONSTRAINED, TrainingSettings, planned_epochs

log = logging.getLogger("lipscale")

DEFAULT_BATCH_SIZE = 128


@dataclass(frozen=True)
class Epoch:
    """What one epoch did; a line of the run's history."""

    phase: int
    epoch: int  # within the phase, from 1
    loss: float  # mean training loss
    train_accuracy: float  # of the network as it trained
    lipschitz: float | None  # L after the epoch's update; none in an unconstrained network
    temperature: float | None  # T* that moved it; none where there is no feedback
    temperature_error: float | None  # the standard error of log T*
    calibration_accuracy: float | None
    seconds: float


class ListTraining:
    """Algorithm 1 as a state: after every epoch `state()` and the network's and optimizer's tensors say it all.

    `on_epoch` is called at the end of each epoch, in evaluation mode: with the averaged weights in place.
    """

    def __init__(
        self,
        net: nn.Module,
        train: Samples,
        calibration: Samples | None,
        settings: TrainingSettings,
        *,
        augmentation: str = "none",
        class_weights: Tensor | None = None,
        box: Box | None = None,
        on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    ) -> None:
        self.net, self.train, self.calibration, self.settings = net, train, calibration, settings
        self.augmentation, self.on_epoch, self.class_weights = augmentation, on_epoch, class_weights
        self.should_stop: Callable[[], bool] = lambda: False  # asked after every batch
        self.partial: dict[str, Any] | None = None  # of an epoch that was stopped: its batches and sums so far
        self.method = method_of(settings, box=box)
        self._compiled = torch.compile(net) if settings.compile else net
        self.optimizer = new_optimizer(net, settings)
        self.most_epochs, self.finishing_epochs = planned_epochs(settings)
        self.phase1_epochs = self.phase2_epochs = 0
        self.seconds = 0.0
        self.advice: str | None = None  # about a calibration set that was too small, at the end of Phase I
        self._named: set[bool] = set()
        if self._is_constrained:
            set_lipschitz(net, settings.lipschitz)
        # without a calibration set there is nothing to steer by: the same loop, at a fixed L
        self.feedback: Feedback | None = None
        if calibration is not None:
            self.feedback = self._new_feedback()

    def run(self) -> None:
        """Both phases, from wherever the state stands; the network ends in evaluation mode, ready to ship."""
        self.phase_one()
        if self.calibration is not None and not self.settings.phase1_only:
            self.phase_two(self.train.join(self.calibration))

    def phase_one(self) -> None:
        """Dynamic search: train an epoch under L, measure T* on the calibration set, project onto the next L."""
        while not self._is_over(self.phase1_epochs):
            with self._epoch(self.train, phase=1, number=self.phase1_epochs + 1) as measured:
                self.phase1_epochs += 1
                if self.calibration is not None and self.feedback is not None:
                    measured.update(self._feed_back(self.calibration, self.feedback))

    def _feed_back(self, calibration: Samples, feedback: Feedback) -> dict[str, float]:
        """Step 2 of Algorithm 1: measure T* on D_cal, and project the network onto the L that it asks for."""
        logits, labels = predict_logits(self.net, calibration), calibration.labels
        measure = measure_temperature(logits, labels)
        # the paper's T* is the plain minimiser; the error belongs to it just as well
        value = fit_temperature(logits, labels) if self.settings.feedback == "paper" else measure.value
        right = int((logits.argmax(1) == labels).sum())
        constant = feedback.update(value, measure.error)
        if not feedback.steered:
            self._name_degeneracy(value)
        if self._is_over(self.phase1_epochs):
            guessed = int(labels.bincount().max()) / len(labels)
            # a plain T* of 0 was named, and knows nothing of the error that belongs to half an error more
            self.advice = None if value == 0 else poor_resolution(measure, len(labels), right=right, guessed=guessed)
            if self.advice:
                log.warning(self.advice)
            constant = feedback.final
        if isinstance(self.optimizer, PlannedAdamW):
            self.optimizer.forget_larger(constant / get_lipschitz(self.net))
        set_lipschitz(self.net, constant)
        return {
            "temperature": value,
            "temperature_error": measure.error,
            "calibration_accuracy": right / len(labels),
        }

    def phase_two(self, total: Samples) -> None:
        """Data re-integration: fine-tune on D_train and D_cal together, with L frozen at L*."""
        # once, at its very beginning: an epoch that was stopped has a restarted optimizer already
        if self.phase2_epochs == 0 and self.partial is None and self.settings.phase2_start == "restart":
            self.optimizer = new_optimizer(self.net, self.settings)
        while self.phase2_epochs < self.finishing_epochs:
            with self._epoch(total, phase=2, number=self.phase2_epochs + 1):
                self.phase2_epochs += 1

    def _is_over(self, epochs: int) -> bool:
        """Whether Phase I ends after so many epochs: with its budget, or before, once L has settled."""
        # the steady rule carries a plan out whole: the learning rate has to come down before L is what it will be
        carried_out = self.settings.optimizer == "planned" and self.settings.feedback == "steady"
        stopped = self.feedback is not None and self.feedback.settled and not carried_out
        return stopped or epochs >= self.most_epochs

    @contextmanager
    def _epoch(self, samples: Samples, *, phase: int, number: int) -> Iterator[dict[str, float]]:
        """Train an epoch, hand over in evaluation mode to measure, then report the epoch."""
        start = time.perf_counter()
        self.net.train()
        self.optimizer.train()
        batches = self._batches(samples, "train", phase, number)
        if isinstance(self.optimizer, PlannedAdamW):
            batches = self._on_plan(batches, self.optimizer, samples, phase, number)
        loss, train_accuracy = self._optimise(batches)
        if not math.isfinite(loss):
            raise DivergedError(f"the loss became {loss} in epoch {number} of Phase {'I' * phase}")
        # means are estimated on inputs as they will come, without augmentation
        plain = self._batches(samples, "centering", phase, number, augmentation="none")
        centering = (inputs for inputs, _ in islice(plain, self.settings.centering_batches))
        # not left at the end: what is saved, measured and shipped is one and the same state
        self.optimizer.eval()
        self.net.eval()
        with evaluation_mode(self.net, centering_batches=centering):
            if not self.net(as_input(samples.inputs[:1])).isfinite().all():
                raise DivergedError(f"the logits became infinite in epoch {number} of Phase {'I' * phase}")
            measured: dict[str, float] = {}
            yield measured
            seconds = time.perf_counter() - start
            self.seconds += seconds
            self.on_epoch(
                Epoch(
                    phase=phase,
                    epoch=number,
                    loss=loss,
                    train_accuracy=train_accuracy,
                    lipschitz=get_lipschitz(self.net) if self._is_constrained else None,
                    temperature=measured.get("temperature"),
                    temperature_error=measured.get("temperature_error"),
                    calibration_accuracy=measured.get("calibration_accuracy"),
                    seconds=seconds,
                )
            )

    def _optimise(self, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, float]:
        """Step 1 of Algorithm 1: theta <- theta - eta Optimizer(grad of the loss), batch by batch."""
        device = next(self.net.parameters()).device
        sums = torch.zeros(3, device=device)  # of losses, correct answers, samples
        done = 0
        if self.partial is not None:  # in the middle of an epoch; batches are drawn anyway, for their random numbers
            done, sums = self.partial["batches"], torch.tensor(self.partial["sums"], device=device)
        for number, (inputs, labels) in enumerate(batches, 1):
            if number <= done:
                continue
            chance = random_stream(self.settings.seed, "method", self.phase1_epochs, number)
            logits = self._forward(self.method.transform(self.net, inputs, labels, chance))
            loss = self.method.loss(logits, labels, weights=self.class_weights)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            processes.average_gradients(self.net.parameters())
            self.optimizer.step()
            # stays on the device: no synchronisation in the loop
            correct = (logits.detach().argmax(1) == labels).sum()
            sums += torch.stack((loss.detach() * len(labels), correct, torch.full_like(loss.detach(), len(labels))))
            if self.should_stop():
                self.partial = {"batches": number, "sums": sums.tolist()}
                raise StoppedError(f"stopped after batch {number}")
        self.partial = None
        loss_sum, correct_sum, count = processes.total(sums).tolist()
        return loss_sum / count, correct_sum / count

    def _forward(self, inputs: Tensor) -> Tensor:
        """The training network's logits, in float32 whatever it computes in."""
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)  # what convolutions are fastest on
        reduced = self.settings.precision == "bfloat16"
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=reduced):
            return self._compiled(inputs).float()

    def _on_plan(
        self,
        batches: Iterator[tuple[Tensor, Tensor]],
        optimizer: PlannedAdamW,
        samples: Samples,
        phase: int,
        number: int,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches, each after the learning rate was set for it: nearly down to zero in Phase I, the rest in II."""
        steps = math.ceil(len(samples) / self._batch_size)
        left = self._left_for_phase_two
        warm_up = (
            WARM_UP * self.most_epochs if self.settings.warmup_steps is None else self.settings.warmup_steps / steps
        )
        for step, batch in enumerate(batches):
            done = number - 1 + (step + 0.5) / steps  # the middle of the step: neither the first nor the last is idle
            if phase == 1:
                share = planned_share(done, self.most_epochs, warm_up=warm_up, left=left)
            else:  # from where Phase I left it, also where that ended early
                start = planned_share(self.phase1_epochs, self.most_epochs, left=left)
                share = start * planned_share(done, self.finishing_epochs)
            optimizer.set_share(share)
            yield batch

    def _name_degeneracy(self, temperature: float) -> None:
        """Say once, for each direction, that T* cannot steer L."""
        if (temperature > 1) not in self._named:
            self._named.add(temperature > 1)
            log.warning(cannot_steer(temperature, size=len(self.calibration or ())))

    def _batches(
        self, samples: Samples, purpose: str, phase: int, number: int, *, augmentation: str | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        return epoch_batches(
            samples,
            self._batch_size,
            augmentation=self.augmentation if augmentation is None else augmentation,
            seed=self.settings.seed,
            stream=(purpose, phase, number),
        )

    @property
    def _is_constrained(self) -> bool:
        return self.settings.method in CONSTRAINED

    @property
    def _left_for_phase_two(self) -> float:
        """The share of the planned learning rate at the end of Phase I."""
        return LEFT_FOR_PHASE_TWO if self.settings.optimizer == "planned" and self.finishing_epochs else 0.0

    @property
    def _batch_size(self) -> int:
        return self.settings.batch_size or DEFAULT_BATCH_SIZE

    def _new_feedback(self, **state: Any) -> Feedback:
        if self.settings.feedback == "steady":
            # at the pace of Phase I, the rest of the learning rate is gone after so many epochs
            ahead = self.most_epochs * self._left_for_phase_two / (1 - self._left_for_phase_two)
            plan = {"budget": self.most_epochs, "ahead": ahead}
            return SteadyFeedback(**{"constant": self.settings.lipschitz, **plan, **state})
        stop = {"window": self.settings.window, "tolerance": self.settings.tolerance}
        return PaperFeedback(**{"constant": self.settings.lipschitz, **stop, **state})

    def state(self) -> dict[str, Any]:
        """The plain values of the state; tensors are the network's and the optimizer's own."""
        return {
            "phase1_epochs": self.phase1_epochs,
            "phase2_epochs": self.phase2_epochs,
            "seconds": self.seconds,
            "feedback": self.feedback.state() if self.feedback else None,
            "advice": self.advice,
            "partial": self.partial,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; the tensors are loaded separately."""
        self.phase1_epochs, self.phase2_epochs = state["phase1_epochs"], state["phase2_epochs"]
        self.seconds = state["seconds"]
        self.feedback = self._new_feedback(**state["feedback"]) if state["feedback"] else None
        self.partial, self.advice = state.get("partial"), state.get("advice")
