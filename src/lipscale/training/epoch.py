"""One epoch: step 1 of Algorithm 1, batch by batch, and what came of it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lipscale import _processes as processes
from lipscale._random import random_stream, seeded
from lipscale.errors import DivergedError, StoppedError, UserError
from lipscale.layers import BatchCentering, estimate_means
from lipscale.training.batches import Batch, Batches
from lipscale.training.optimizer import set_share

if TYPE_CHECKING:
    from lipscale.training.algorithm import Training


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
    cpu_seconds: float = field(default=0.0, compare=False)  # of this process; unknown to earlier versions


def counted(count: float, noun: str) -> str:
    """1 epoch, 2 epochs."""
    return f"{count:g} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class StoppedEpoch:
    """How far an epoch was when it was asked to stop: enough to go on within it."""

    batches: int
    sums: list[float]  # of losses, correct answers, samples


def train_epoch(
    training: "Training", data: Batches, *, phase: int, should_stop: Callable[[], bool]
) -> tuple[float, float]:
    """Train on all batches once; the mean loss and the accuracy. The network ends in evaluation mode.

    theta <- theta - eta Optimizer(grad of the loss)
    """
    net, optimizer, settings = training.net, training.optimizer, training.settings
    number = 1 + training.epochs_of(phase)
    net.train()
    optimizer.train()
    sums = torch.zeros(3, device=training.device)  # of losses, correct answers, samples
    done, last = 0, None
    if training.stopped is not None:  # within an epoch; batches are drawn anyway, for their random numbers
        done, before = training.stopped.batches, torch.tensor(training.stopped.sums, device=training.device)
        sums = before if processes.is_first() else sums
    for step, (inputs, labels) in enumerate(data.epoch("train", phase, number)):
        last = inputs[:1]
        if step < done:
            continue
        set_share(optimizer, training.plan.share(phase, number, step, len(data), training.epochs_of(1)))
        own = processes.own_stream()
        stream = random_stream(settings.seed, "method", training.epochs_of(1), step + 1, *own)
        with seeded(settings.seed, "forward", phase, number, step, *own):  # for what draws from torch's own: dropout
            correct, loss = train_step(training, inputs, labels, stream, is_first=step == 0)
        # stays on the device: no synchronisation in the loop
        sums += torch.stack((loss.detach() * len(labels), correct, torch.full_like(loss.detach(), len(labels))))
        if processes.in_any(should_stop()):
            training.stopped = StoppedEpoch(step + 1, processes.total(sums).tolist())
            raise StoppedError(f"stopped after batch {step + 1}")
    training.stopped = None
    loss_sum, correct_sum, count = processes.total(sums).tolist()
    if not math.isfinite(loss_sum):
        raise DivergedError(f"the loss became {loss_sum / count} in epoch {number} of Phase {'I' * phase}")
    finish_weights(training, data, phase, number)
    with torch.no_grad():
        if processes.in_any(last is not None and not bool(net(last).isfinite().all())):
            raise DivergedError(f"the logits became infinite in epoch {number} of Phase {'I' * phase}")
    return loss_sum / count, correct_sum / count


def train_step(
    training: "Training", inputs: Tensor, labels: Tensor, stream: torch.Generator, *, is_first: bool = False
) -> tuple[Tensor, Tensor]:
    """One batch, or this process's share of it: how many were right, the batch's loss, and the optimizer's step."""
    samples = len(labels)
    inputs, labels = training.method.transform(training.net, inputs, labels, stream)
    logits = training.forward(inputs)
    if is_first:
        _require_classes(labels, logits.shape[1])
    loss = training.loss(logits, labels)
    training.optimizer.zero_grad(set_to_none=True)
    loss = processes.backward(loss, training.weight_of(labels), training.net.parameters())
    training.optimizer.step()
    # a method may learn from every sample more than once
    return (logits.detach().argmax(1) == labels).sum() * (samples / len(labels)), loss


def _require_classes(labels: Tensor, classes: int) -> None:
    """Asked of the first batch alone: it synchronises, and wrong labels are wrong from the start."""
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise UserError(f"expected labels in 0..{classes - 1}, got {int(labels.min())}..{int(labels.max())}")


def finish_weights(training: "Training", data: Batches, phase: int, number: int) -> None:
    """The network as it would be shipped: averaged weights, and the exact centering means of them.

    What is saved, measured and shipped is one and the same state, so it stays until the next epoch begins.
    """
    training.optimizer.eval()
    training.net.eval()
    wanted = min(training.settings.centering_batches, len(data))
    draw = lambda only: data.epoch("centering", phase, number, augmented=False, only=only)  # noqa: E731
    if training.device.type == "cpu" and 1 < processes.count() <= wanted:
        _estimate_in_turns(training.net, wanted, draw)
    else:
        estimate_means(training.net, (inputs for inputs, _ in draw(slice(wanted))))


def _estimate_in_turns(net: nn.Module, wanted: int, draw: Callable[[slice], Iterator[Batch]]) -> None:
    """The centering means by processes that take whole batches in turns, and not a share of each.

    A share of each would have to be averaged layer by layer, and messages take their time between CPUs. They do not
    between GPUs, where whole batches may not fit; and with fewer batches than processes some would be idle.
    """
    count, own = processes.count(), processes.number()

    def estimate() -> int:
        seen = 0

        def inputs() -> Iterator[Tensor]:
            nonlocal seen
            for batch, _ in draw(slice(own, wanted, count)):
                seen += 1
                yield batch

        with processes.alone():
            estimate_means(net, inputs())
        return seen

    seen = processes.in_all(estimate)  # one may be slower than others by more than a message may take
    for layer in net.modules():
        if isinstance(layer, BatchCentering):
            layer.mean.copy_(processes.average(layer.mean, seen))
