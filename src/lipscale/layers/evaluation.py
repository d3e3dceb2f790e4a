"""The one evaluation mode: everything that measures a network goes through it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor, nn

from lipscale.layers.centering import estimate_means
from lipscale.layers.scale import ScaledLayer

# networks inside an evaluation mode: measurements nest, and share the weights of the outermost one
_measured: "WeakSet[nn.Module]" = WeakSet()


class AveragingOptimizer(Protocol):
    """An optimizer that trains one set of weights and measures another, as ScheduleFree does."""

    param_groups: list[dict[str, Any]]

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
    estimated for them and kept. A loaded network has both already. On leaving, every module and the optimizer are in
    the mode that they came in.
    """
    modes = {module: module.training for module in net.modules()}
    was_averaged = optimizer is None or not any(group["train_mode"] for group in optimizer.param_groups)
    is_outermost = net not in _measured
    if optimizer is not None:
        optimizer.eval()
    net.eval()
    if is_outermost or not was_averaged:
        _measured.add(net)
        for module in modes:
            if isinstance(module, ScaledLayer):
                module.drop_cache()  # version counters miss what was written through .data
    try:
        if centering_batches is not None:
            estimate_means(net, centering_batches)
        with torch.no_grad():
            yield net
    finally:
        if is_outermost:
            _measured.discard(net)
        for module, training in modes.items():
            if training:  # each by itself: a part may have been frozen
                module.training = True
                if isinstance(module, ScaledLayer):
                    module.drop_cache()
        if optimizer is not None and not was_averaged:
            optimizer.train()
