"""Batch centering: batch normalisation without the division, hence 1-Lipschitz; and the statistics of both."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from lipscale import _processes as processes
from lipscale.errors import UserError
from lipscale.layers.affine import per_channel
from lipscale.layers.evaluation import evaluation_mode
from lipscale.layers.scale import AtScale
from lipscale.layers.tracing import is_traced

MOMENTUM = 0.1  # the weight of a new batch in the running mean, as in torch's batch normalisation


class BatchCentering(AtScale):
    """y = x - E[x] + scale * b, channel by channel (the paper's BatchCentering).

    In training E[x] is the batch's mean, and a running mean of it is kept, as batch normalisation keeps one; where
    processes share a batch, it is that of all of it. In evaluation E[x] is scale * mean. The mean lives in unit scale,
    so it stays right when L changes. `estimate_means` replaces the running mean by the exact one of what is shipped.
    """

    mean: Tensor
    num_batches_tracked: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))
        self._collected: list[Tensor] | None = None  # batch means, within `batch_means`

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) -> (B, C, ...)."""
        shift = self.scale * self.bias
        if self.training and not is_traced():
            y, mean = _Centre.apply(x, shift)
            self._track(mean)
            return y
        if self.training:
            mean = _channel_mean(x)
            self._track(mean)
        elif self._collected is not None:
            mean = _channel_mean(x)
            self._collected.append(mean / self.scale)
        else:
            mean = self.scale * self.known_mean()
        return x + per_channel((shift - mean).to(x.dtype), x)

    def known_mean(self) -> Tensor:
        """The mean in unit scale; an error where nothing has set it, because zero would be silently wrong."""
        if not is_traced() and not self.num_batches_tracked:
            raise UserError(
                "a BatchCentering layer has no mean yet: train the network first, or set the means with "
                "lipscale.estimate_means(net, batches)"
            )
        return self.mean

    @torch.no_grad()
    def _track(self, mean: Tensor) -> None:
        self.num_batches_tracked += 1
        # a plain average at first, so that the zero that it starts from does not count
        weight = (1 / self.num_batches_tracked).clamp(min=MOMENTUM)
        self.mean.lerp_((mean / self.scale).to(self.mean.dtype), weight.to(self.mean.dtype))


def _channel_mean(x: Tensor) -> Tensor:
    return processes.average(_own_channel_mean(x), len(x))


def _own_channel_mean(x: Tensor) -> Tensor:
    return x.mean([0, *range(2, x.ndim)])


class _Centre(torch.autograd.Function):
    """y = x - mean(x) + shift, whose gradient is centred too: one pass over it instead of three; and the mean."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        mean = _channel_mean(x)
        ctx.mark_non_differentiable(mean)
        return x + per_channel((shift - mean).to(x.dtype), x), mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        own = _own_channel_mean(grad)
        mean = processes.average(own, len(grad)).to(grad.dtype)
        return grad - per_channel(mean, grad), own * (grad.numel() // len(own))


@contextmanager
def batch_means(net: nn.Module) -> Iterator[list[BatchCentering]]:
    """Within, centering layers in evaluation subtract the batch's own mean, as in training, and collect it."""
    layers = [m for m in net.modules() if isinstance(m, BatchCentering)]
    for layer in layers:
        layer._collected = []
    try:
        yield layers
    finally:
        for layer in layers:
            layer._collected = None


@torch.no_grad()
def estimate_means(net: nn.Module, batches: Iterable[Tensor]) -> None:
    """Set every centering mean to its exact average over training batches, in evaluation.

    While it estimates, each layer subtracts the batch's own mean, as in training, so that one pass serves all depths.
    Batch normalisation, in unconstrained networks, gets its means and variances in the same pass.

    Args:
        net: The network; every module ends in the mode that it came in.
        batches: Network inputs; some 50 training batches are plenty. A network without such layers draws none.

    Example:
        >>> import torch, lipscale
        >>> net = lipscale.models.convnet(num_classes=10, in_channels=1, width=4).eval()
        >>> lipscale.estimate_means(net, [torch.rand(8, 1, 12, 12)])
        >>> net(torch.rand(2, 1, 12, 12)).shape
        torch.Size([2, 10])
    """
    normalisations = [m for m in net.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not normalisations and not any(isinstance(m, BatchCentering) for m in net.modules()):
        return
    with evaluation_mode(net), batch_means(net) as layers:
        with _averaging(normalisations):
            for batch in batches:
                if not isinstance(batch, Tensor):
                    raise UserError(f"expected batches of network inputs, without labels, got a {type(batch).__name__}")
                net(batch)
        for layer in layers:
            if layer._collected:
                layer.mean.copy_(torch.stack(layer._collected).mean(0))
                layer.num_batches_tracked.clamp_(min=len(layer._collected))


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
