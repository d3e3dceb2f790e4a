"""Batch centering: batch normalisation without the division, hence 1-Lipschitz; and the statistics of both."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from lipscale import _processes as processes
from lipscale.layers.affine import per_channel
from lipscale.layers.scale import AtScale
from lipscale.layers.tracing import prefers_plain_operations


class BatchCentering(AtScale):
    """y = x - E[x] + gain * b, channel by channel (the paper's BatchCentering).

    In training E[x] is the batch's mean. In evaluation it is gain * mean, with a stored mean in unit scale that
    only `estimate_means` writes: nothing about it moves during training, and it survives saving and loading.
    """

    mean: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self._collected: list[Tensor] | None = None  # batch means, while `estimate_means` runs

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) -> (B, C, ...)."""
        shift = self.gain * self.bias
        if self.training and self._collected is None and not prefers_plain_operations():
            return _Centre.apply(x, shift)
        if self.training or self._collected is not None:
            mean = _channel_mean(x)
            if self._collected is not None:
                self._collected.append(mean / self.gain)
        else:
            mean = self.gain * self.mean
        return x + per_channel((shift - mean).to(x.dtype), x)


def _channel_mean(x: Tensor) -> Tensor:
    return x.mean([0, *range(2, x.ndim)])


class _Centre(torch.autograd.Function):
    """y = x - mean(x) + shift, whose gradient is centred too: one pass over it instead of three."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor) -> Tensor:
        return x + per_channel((shift - _channel_mean(x)).to(x.dtype), x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        mean = _channel_mean(grad)
        return grad - per_channel(mean, grad), mean * (grad.numel() // len(mean))


@torch.no_grad()
def estimate_means(net: nn.Module, batches: Iterable[Tensor]) -> None:
    """Set every centering mean of an evaluation-mode network to its average over training batches.

    While it estimates, each layer subtracts the batch's own mean, as in training, so that one pass serves all depths.
    Batch normalisation, in unconstrained networks, gets its means and variances in the same pass.
    """
    layers = [m for m in net.modules() if isinstance(m, BatchCentering)]
    normalisations = [m for m in net.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not layers and not normalisations:
        return
    for layer in layers:
        layer._collected = []
    try:
        with _averaging(normalisations):
            for batch in batches:
                net(batch)
        for layer in layers:
            layer.mean.copy_(processes.gather(torch.stack(layer._collected or [layer.mean])).mean(0))
    finally:
        for layer in layers:
            layer._collected = None


@contextmanager
def _averaging(layers: list[_BatchNorm]) -> Iterator[None]:
    """Within, batch normalisations collect the plain average of their statistics over the batches that they see."""
    before = [(layer.momentum, layer.training, [b.clone() for b in layer.buffers()]) for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # torch's word for a plain average
        layer.training = True
    try:
        yield
    finally:
        for layer, (momentum, training, buffers) in zip(layers, before, strict=True):
            layer.momentum, layer.training = momentum, training
            if not layer.num_batches_tracked:  # no batch: what was known before is better than nothing
                for buffer, kept in zip(layer.buffers(), buffers, strict=True):
                    buffer.copy_(kept)
            for statistic in (layer.running_mean, layer.running_var):
                assert statistic is not None
                statistic.copy_(processes.gather(statistic.unsqueeze(0)).mean(0))
