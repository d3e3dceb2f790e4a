"""Resumption: the whole state of a training in one file, after every epoch and when it is asked to stop."""

import hashlib
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lipscale._files import load_tensors, save_tensors
from lipscale.errors import UnusableError, UserError
from lipscale.losses import AdaptiveLoss
from lipscale.training.algorithm import Training
from lipscale.training.epoch import Epoch, StoppedEpoch


def save_training(path: Path, training: Training) -> None:
    """The whole state of a training: after an epoch in evaluation mode, within one as it stands.

    ScheduleFree's switch between its two sets of weights rounds, so both runs, the one that goes on and the one that
    is resumed, must start from the same side of it.
    """
    trainings = _trainings(training)
    tensors = {f"{at}/{name}": t for at, one in enumerate(trainings) for name, t in _tensors(one).items()}
    values = {
        "settings": digest_of(training),
        "history": [asdict(epoch) for epoch in training.history],
        "scheduler": None if training.scheduler is None else training.scheduler.state_dict(),
        "loss": training.method.loss.state if isinstance(training.method.loss, AdaptiveLoss) else None,
        "stopped": None if training.stopped is None else asdict(training.stopped),
        "param_groups": [one.optimizer.state_dict()["param_groups"] for one in trainings],
    }
    save_tensors(path, tensors, values)


def load_training(path: Path, training: Training) -> None:
    """Put a saved state into a training that was built from the same settings."""
    tensors, values = load_tensors(path)
    if values.get("settings") != digest_of(training):
        raise UnusableError(f"{path} is no checkpoint of a run with these settings, this network and so many samples")
    try:
        for at, (one, groups) in enumerate(zip(_trainings(training), values["param_groups"], strict=True)):
            own = {name.removeprefix(f"{at}/"): t for name, t in tensors.items() if name.startswith(f"{at}/")}
            _put(own, groups, one, path)
        training.history = [Epoch(**epoch) for epoch in values["history"]]
        if training.scheduler is not None:
            training.scheduler.load_state_dict(values["scheduler"])
        if isinstance(training.method.loss, AdaptiveLoss):
            training.method.loss.state = values["loss"]
        training.stopped = None if values["stopped"] is None else StoppedEpoch(**values["stopped"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise UnusableError(f"{path} is no checkpoint of this training ({error!r})") from error


def _trainings(training: Training) -> list[Training]:
    """The training itself, and the twins that cross-fitting has."""
    return [training, *(() if training.cross_fit is None else training.cross_fit.twins)]


def _tensors(training: Training) -> dict[str, Tensor]:
    """The weights, and what the optimizer remembers of each."""
    tensors = {f"net/{name}": t for name, t in training.net.state_dict().items()}
    for index, slots in training.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{slot}": t for slot, t in slots.items()}
    return tensors


def _put(tensors: dict[str, Tensor], groups: list[Any], training: Training, path: Path) -> None:
    """The same, back into a training; its network ends in evaluation mode."""
    net: dict[str, Tensor] = {}
    slots: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "net":
            net[rest] = tensor
        else:
            index, slot = rest.split("/")
            slots.setdefault(int(index), {})[slot] = tensor
    load_network(training.net, net, path)
    training.optimizer.load_state_dict({"state": slots, "param_groups": groups})
    training.net.eval()


def saved_history(path: Path) -> list[Epoch]:
    """The epochs that a checkpoint has; none where there is no checkpoint yet."""
    if not path.exists():
        return []
    try:
        return [Epoch(**epoch) for epoch in load_tensors(path)[1]["history"]]
    except (KeyError, TypeError) as error:
        raise UnusableError(f"{path} is no checkpoint of a training ({error!r})") from error


def load_network(net: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put weights into a network of the right shape."""
    try:
        net.load_state_dict(dict(tensors))
    except RuntimeError as error:
        reason = textwrap.shorten(str(error), 200)
        raise UnusableError(f"{path} does not fit the network of its settings: {reason}") from error


def digest_of(training: Training) -> str:
    """What tells the checkpoint of one training from that of another: settings, network, how many samples."""
    sizes = (training.train.size, training.calibration_size)
    text = f"{training.settings.model_dump_json()} {sizes} {training.net!r} {training.identity}"
    return hashlib.sha256(text.encode()).hexdigest()
