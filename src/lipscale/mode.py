"""The one evaluation mode: everything that measures a network goes through it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from lipscale import world
from lipscale.data import Samples, as_input
from lipscale.layers import ScaledLayer, estimate_means


class AveragingOptimizer(Protocol):
    """An optimizer that trains one set of weights and measures another, as ScheduleFree does."""

    def train(self) -> None:
        """Put the training weights in place."""

    def eval(self) -> None:
        """Put the averaged weights in place."""


@contextmanager
def evaluation_mode(
    net: nn.Module,
    optimizer: AveragingOptimizer | None = None,
    *,
    centering_batches: Iterable[Tensor] | None = None,
) -> Iterator[nn.Module]:
    """The network as it would be shipped: averaged weights, orthogonal to float precision, stored centering means.

    During a training, the optimizer's averaged weights are put in place and, with `centering_batches`, the means are
    estimated for them and kept. A loaded network has both already. On leaving, everything is as it was.
    """
    was_training = net.training
    if optimizer is not None:
        optimizer.eval()
        for module in net.modules():
            if isinstance(module, ScaledLayer):
                module.drop_cache()  # other weights are in place now
    net.eval()
    try:
        if centering_batches is not None:
            estimate_means(net, centering_batches)
        with torch.no_grad():
            yield net
    finally:
        net.train(was_training)
        if optimizer is not None and was_training:
            optimizer.train()


@torch.no_grad()
def predict_logits(net: nn.Module, samples: Samples, *, batch_size: int = 512) -> Tensor:
    """The logits of all samples, (N, C), in evaluation mode."""
    with evaluation_mode(net):
        return world.gather(torch.cat([net(as_input(chunk)) for chunk in samples.inputs.split(batch_size)]))
