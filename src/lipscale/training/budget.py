"""A budget in minutes: how wide a network and how many epochs fit into it here, measured in the first steps."""

import math
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from lipscale import _processes as processes
from lipscale._random import random_stream
from lipscale.errors import UserError
from lipscale.training.batches import Batches
from lipscale.training.checkpoint import save_training
from lipscale.training.epoch import finish_weights, train_step
from lipscale.training.fitting import new_training
from lipscale.training.optimizer import set_share

WIDTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256)
FIRST_WIDTH = 32
# On CIFAR-10 narrow networks that see the data 10 to 23 times in an equal time end alike, wider and narrower ones
# behind; a wide one goes on learning: width 128 gains two points of accuracy from 15 to 29 epochs (docs/CIFAR_TRIED.md)
LEAST_EPOCHS, WIDTH_AN_EPOCH = 10, 5
GROWTH = 1.6  # about how the time of an epoch grows with the width: a guess that is measured before it counts
WARM_UP_STEPS, TIMED_STEPS = 2, 6
MOST_PROBING = 0.1  # of the budget may go into measuring
KEPT = 0.04  # of the budget, for what is not foreseen


def seconds_of(net: nn.Module, train: Batches, calibration: Batches | None, settings: dict[str, Any]) -> float:
    """How long an epoch takes here, all included: some steps, the centering means, T* and a checkpoint are timed.

    The network is worthless then.
    """
    training = new_training(net, train, calibration, settings)
    set_share(training.optimizer, 0.01)
    net.train()
    training.optimizer.train()
    stream, start = random_stream(0, "speed"), 0.0
    # epoch after epoch: a small set has fewer batches than are timed
    batches = chain.from_iterable(training.train.epoch("speed", number) for number in count(1))
    for step, (inputs, labels) in zip(range(WARM_UP_STEPS + TIMED_STEPS), batches, strict=False):
        if step == WARM_UP_STEPS:
            start = processes.clock()
        train_step(training, inputs, labels, stream)[1].item()
    taken = (processes.clock() - start) / TIMED_STEPS * len(training.train)
    start = processes.clock()
    finish_weights(training, training.train, 1, 1)
    training.calibration_logits()
    with TemporaryDirectory() as folder:
        save_training(Path(folder) / "checkpoint.safetensors", training)
    return taken + processes.clock() - start


def enough_epochs(width: int) -> int:
    """How often a network of this width should see the data before a wider one is worth its time."""
    return max(LEAST_EPOCHS, width // WIDTH_AN_EPOCH)


def fit_to_time(
    seconds: float,
    time_epoch: Callable[[int | None], tuple[float, float]],
    *,
    spent: float = 0.0,
    width: int | None = None,
    is_scalable: bool = True,
) -> tuple[int | None, int]:
    """The width and the epochs that fill the time: the widest network that sees the data often enough.

    Args:
        seconds: All there is.
        time_epoch: Measures the seconds of an epoch at a width, and those of what comes once, at the end.
        spent: What of it is gone already.
        width: Where it is fixed.
        is_scalable: Whether the width may be chosen at all.

    Returns:
        The width, or none where it stays what it is, and the epochs.
    """
    start = processes.clock() - spent

    def epochs_at(taken: float, once: float) -> float:
        left = seconds * (1 - KEPT) - once - (processes.clock() - start)
        return left / max(taken, 1e-9)

    def whole_epochs(taken: float, once: float) -> int:
        if (epochs := epochs_at(taken, once)) >= 1:
            return int(epochs)
        begun = processes.clock() - start
        enough = math.ceil(100 * (begun + once + 2 * taken) / (1 - KEPT) / 60) / 100  # one epoch, and room for error
        raise UserError(
            f"{seconds / 60:.2g} minutes hold no whole epoch, which takes about {taken:.2g} s here, with {begun:.2g} s "
            f"to begin and {once:.2g} s for the end: give `minutes` of {enough:.2f} or more, "
            "or fewer samples by `limit`"
        )

    if width is not None or not is_scalable:
        return width, whole_epochs(*time_epoch(width))
    index = WIDTHS.index(FIRST_WIDTH)
    taken, once = time_epoch(WIDTHS[index])
    while index > 0 and epochs_at(taken, once) < enough_epochs(WIDTHS[index]):
        index -= 1
        taken, once = time_epoch(WIDTHS[index])
    while index + 1 < len(WIDTHS) and processes.clock() - start < spent + MOST_PROBING * seconds:
        enough = enough_epochs(WIDTHS[index + 1])
        growth = (WIDTHS[index + 1] / WIDTHS[index]) ** GROWTH
        if epochs_at(growth * taken, growth * once) < enough:
            break
        wider = time_epoch(WIDTHS[index + 1])
        if epochs_at(*wider) < enough:
            break
        index, (taken, once) = index + 1, wider
    return WIDTHS[index], whole_epochs(taken, once)
