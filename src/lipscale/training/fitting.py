"""`fit`: a network and data to a calibrated, certified network, in one call."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lipscale import _processes as processes
from lipscale.attacks.ball import Box
from lipscale.errors import DivergedError, StoppedError, UserError
from lipscale.layers import batch_means, evaluation_mode
from lipscale.losses import class_weights
from lipscale.settings import TrainingSettings
from lipscale.training.algorithm import Training, algorithm_1
from lipscale.training.batches import Batches, as_dataset, batches_of, in_parts, is_divisible, samples_in, split_data
from lipscale.training.checkpoint import load_training, save_training
from lipscale.training.defaults import DEFAULT_BATCH_SIZE, calibrated, is_small
from lipscale.training.distributed import require_agreement, require_room, together
from lipscale.training.epoch import Epoch, counted
from lipscale.training.hardware import keep_freed_memory, one_thread
from lipscale.training.loggers import Logger, logger_list, watched
from lipscale.training.progress import TrainingProgress


@dataclass(frozen=True)
class Fit:
    """A finished training: the network in evaluation mode, ready to certify, and how it came about."""

    net: nn.Module
    lipschitz: float | None  # L*, or the fixed L; none in an unconstrained network
    history: tuple[Epoch, ...]
    converged: bool | None  # whether the feedback came to rest; none without feedback
    advice: str | None  # about a calibration set that was too small
    train_size: int
    calibration_size: int
    seconds: float
    cpu_seconds: float = 0.0

    def epochs_of(self, phase: int) -> int:
        """The epochs that a phase took."""
        return sum(epoch.phase == phase for epoch in self.history)


def fit(
    net: nn.Module,
    train: Any,
    calibration: Any = None,
    *,
    epochs: int = 40,
    offset: float = 0.0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    should_stop: Callable[[], bool] = lambda: False,
    loggers: Sequence[str | Logger] = (),
    box: Box | None = None,
    identity: str = "",
    **settings: Any,
) -> Fit:
    """Train with LiST, both phases of Algorithm 1.

    Args:
        net: A network with scaled layers (lipscale.models, or your own Sequential of lipscale.layers).
        train: A Dataset or DataLoader of (inputs, labels), or two tensors.
        calibration: Likewise, for the feedback on L; left out, a tenth of `train`, or of few samples all, in turns.
        epochs: The budget: the whole training is planned for it.
        offset: Margin offset xi of the loss; larger is more robust, often less accurate.
        checkpoint: A file to save to after every epoch. Where it exists, training goes on from it: with a Dataset to
            the same numbers, while a DataLoader that shuffles draws its own.
        progress: Show a progress bar.
        on_epoch: Called after every epoch, once its checkpoint is saved.
        should_stop: Asked after every batch; a yes saves the checkpoint and raises StoppedError. Of processes that
            train together (under torchrun) each is asked, and the first one saves, shows and calls.
        loggers: Objects with the methods of `lipscale.training.loggers.Logger`, or of tensorboard, mlflow and wandb the
            names; these write beside the checkpoint.
        box: The range of an input's values, for methods that attack training batches.
        identity: Whatever else a checkpoint must belong to, such as a digest of the data.
        settings: Anything else in `lipscale.training.TrainingSettings`: batch_size, seed, ...

    Returns:
        The network, L*, the history and what else there is to know.

    Example:
        >>> import torch, lipscale
        >>> data = torch.utils.data.TensorDataset(torch.rand(200, 4), torch.arange(200) % 2)
        >>> net = lipscale.models.mlp(num_classes=2, input_shape=4, width=8)
        >>> lipscale.fit(net, data, epochs=2, progress=False).net.training
        False
    """
    settings |= {"epochs": epochs, "offset": offset}
    path = None if checkpoint is None else Path(checkpoint)
    told = logger_list(loggers)
    with together():
        training = new_training(net, train, calibration, settings, box=box, identity=identity)
        require_agreement(training)
        if path is not None:
            processes.in_all(lambda: _load(path, training))
            processes.require_same(f"epochs in {path}", len(training.history))
        with one_thread(when=is_small(net, training.settings.batch_size or DEFAULT_BATCH_SIZE)):
            return _carry_out(training, path, progress, on_epoch, should_stop, told)


def _carry_out(
    training: Training,
    path: Path | None,
    progress: bool,
    on_epoch: Callable[[Epoch], None],
    should_stop: Callable[[], bool],
    loggers: Sequence[Logger],
) -> Fit:
    """Algorithm 1 from wherever the training is; the first process saves every epoch, logs and shows it."""
    shown = progress and processes.is_first()
    folder, settings = None if path is None else path.parent, training.settings.model_dump(mode="json")
    with (
        watched(loggers, folder, settings, training.history) as audience,
        TrainingProgress(training.plan, training.settings) if shown else nullcontext(_ignore) as display,
    ):

        def finish(epoch: Epoch) -> None:
            if path is not None:
                save_training(path, training)
            audience.epoch(epoch)
            on_epoch(epoch)
            display(epoch)

        def finish_by_first(epoch: Epoch) -> None:
            processes.by_first(lambda: finish(epoch))

        try:
            algorithm_1(training, on_epoch=finish_by_first, should_stop=should_stop)
        except (StoppedError, DivergedError) as error:
            raise _explained(error, training, path) from None
        result = _finished(training)
        audience.end({name: value for name, value in vars(result).items() if name not in ("net", "history")})
    return result


def _load(path: Path, training: Training) -> None:
    if path.exists():
        load_training(path, training)


def _ignore(epoch: Epoch) -> None:
    pass


def _explained(error: Exception, training: Training, path: Path | None) -> Exception:
    """A stop saves the state and says where it is, a divergence says what to try."""
    if isinstance(error, StoppedError):
        if path is not None:
            processes.by_first(lambda: save_training(path, training))
        return StoppedError(_where_it_stopped(training, path))
    return DivergedError(f"{error}{_what_to_try(training, path)}")


def _where_it_stopped(training: Training, path: Path | None) -> str:
    done = training.history[-1] if training.history else None
    phase = "" if done is None else f" of Phase {'I' * done.phase}"
    where = counted(0 if done is None else done.epoch, "whole epoch") + phase
    return f"stopped after {where}{', all is saved' if path else ''}"


def _what_to_try(training: Training, path: Path | None) -> str:
    last = f"; the last good checkpoint is {path}" if path is not None and path.exists() else ""
    return f"{last}; try a smaller `learning_rate` than {training.settings.learning_rate:g}"


def new_training(
    net: nn.Module,
    train: Any,
    calibration: Any,
    settings: dict[str, Any],
    *,
    box: Box | None = None,
    identity: str = "",
) -> Training:
    """A training at its very beginning, where the network is."""
    keep_freed_memory()
    chosen, drawn, held_out, parts = processes.in_all(lambda: _batches(net, train, calibration, settings))
    processes.spread(net)
    weights = _class_weights(net, drawn, chosen)
    return Training(net, drawn, held_out, chosen, parts=parts, class_weights=weights, box=box, identity=identity)


def _batches(
    net: nn.Module, train: Any, calibration: Any, settings: dict[str, Any]
) -> tuple[TrainingSettings, Batches, Batches | None, list[Batches]]:
    """The settings, checked, and the batches to train on, to calibrate on, or the parts that take turns in it."""
    chosen = TrainingSettings.checked(settings)
    train, calibration, parts = as_dataset(train), as_dataset(calibration), list[Any]()
    if not chosen.holds_out and calibration is not None:
        raise UserError(f"method {chosen.method} has no feedback and so no use for a calibration set: join it to train")
    if chosen.holds_out and calibration is None:
        chosen = calibrated(chosen, samples_in(train), divisible=is_divisible(train))
        assert chosen.calibration_fraction is not None  # decided
        if chosen.cross_fit:
            parts = in_parts(train, round(1 / chosen.calibration_fraction), seed=chosen.seed)
        elif isinstance(train, Batches):
            raise UserError("batches cannot be split: give a calibration set of their own")
        else:
            train, calibration = split_data(train, chosen.calibration_fraction, seed=chosen.seed)
    batch_size = chosen.batch_size or DEFAULT_BATCH_SIZE
    device = next(net.parameters()).device

    def batches(data: Any) -> Batches:
        return batches_of(data, batch_size=batch_size, seed=chosen.seed).to(device)

    drawn = batches(train)
    held_out: Batches | None = None
    if calibration is not None:
        held_out = batches(calibration)
        if type(drawn) is not type(held_out):  # Phase II could not join them
            kinds = f"{type(train).__name__} and {type(calibration).__name__}"
            raise UserError(f"expected `train` and `calibration` in one form, got {kinds}")
    chosen = chosen.model_copy(update={"batch_size": batch_size})
    turns = [batches(part) for part in parts]
    require_room(net, chosen, drawn, held_out, turns)
    return chosen, drawn, held_out, turns


def _class_weights(net: nn.Module, train: Batches, settings: TrainingSettings) -> Tensor | None:
    if settings.class_weights == "none":
        return None
    inputs, _ = next(train.in_order())
    with evaluation_mode(net), batch_means(net):  # means that nobody has set yet do not matter here
        classes = net(inputs[:2]).shape[1]
    weights = class_weights(settings.class_weights, train.labels(), classes)
    return None if weights is None else weights.to(next(net.parameters()).dtype)


def _finished(training: Training) -> Fit:
    scheduler = training.scheduler
    return Fit(
        net=training.net.eval(),
        lipschitz=training.history[-1].lipschitz,
        history=tuple(training.history),
        converged=None if scheduler is None else scheduler.converged,
        advice=None if scheduler is None else scheduler.advice,
        train_size=training.train.size,
        calibration_size=training.calibration_size,
        seconds=training.seconds,
        cpu_seconds=sum(epoch.cpu_seconds for epoch in training.history),
    )
