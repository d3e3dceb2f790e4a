"""The scaled orthogonal convolution, on orthogonium's adaptive orthogonal convolution."""

from typing import Any

import torch
import torch.nn.functional as F
from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d
from orthogonium.layers.conv.AOC.bcop_x_rko_conv import BcopRkoConv2d
from orthogonium.layers.conv.AOC.fast_block_ortho_conv import fast_matrix_conv
from orthogonium.layers.conv.AOC.rko_conv import RKOParametrizer
from torch import Tensor, nn

from lipscale.errors import UserError
from lipscale.layers.orthogonal import polar_factor
from lipscale.layers.scale import ScaledLayer


class OrthoConv2d(ScaledLayer):
    """y = sigma * (K * x) + gain * b with K orthogonal on every grid (the paper's AdaptiveOrthoConv2d).

    Inputs are padded with zeros. That keeps the norm at 1 for every input size, odd ones at stride 2 included,
    where circular padding fails; what it gives up is isometry at the border.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, stride: int = 1, bias: bool = True
    ) -> None:
        if stride > kernel_size:
            raise UserError(f"expected stride <= kernel_size, got stride {stride}, kernel_size {kernel_size}")
        if kernel_size > stride and max(in_channels, out_channels) < 2:
            raise UserError("an orthogonal convolution larger than 1 x 1 needs at least 2 channels on one side")
        super().__init__(out_channels, bias=bias)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride = kernel_size, stride
        self.padding = (kernel_size - 1) // 2
        # only the kernel is taken from the peer, never its forward: the padding is ours
        self.peer = AdaptiveOrthoConv2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=self.padding, bias=False
        )
        self._start_orthogonal()

    @torch.no_grad()
    def _start_orthogonal(self) -> None:
        """Start where the iteration ends: a Gaussian start can be so ill-conditioned that it is far from it."""
        for chain in self.peer.parametrizations.values():
            chain.original.copy_(_orthonormal(chain).reshape(chain.original.shape))

    def unit_weight(self) -> Tensor:
        """Orthogonium's kernel: power iterations, a truncated Bjorck iteration, block composition."""
        return self.peer.weight

    def exact_unit_weight(self) -> Tensor:
        """Orthogonium's composition of exact polar factors."""
        if isinstance(self.peer, BcopRkoConv2d):
            return fast_matrix_conv(_exact(self.peer, "weight_1"), _exact(self.peer, "weight_2")).contiguous()
        return _exact(self.peer, "weight")

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, H', W'); for odd kernels H' = ceil(H / stride)."""
        return F.conv2d(x, self.weight, self.scaled_bias(), stride=self.stride, padding=self.padding)

    def extra_repr(self) -> str:
        """The shape, for print(net)."""
        shape = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        return f"{shape}, stride={self.stride}, bias={self.bias is not None}"


def _exact(peer: nn.Module, name: str) -> Tensor:
    """One of orthogonium's parametrised weights, with its iterations replaced by their limit."""
    chain: Any = peer.parametrizations[name]  # type: ignore[index]
    last = chain[-1]
    if isinstance(last, RKOParametrizer):  # a reshaped orthogonal matrix
        return last.scale * _orthonormal(chain).reshape(last.kernel_shape)
    return last(_orthonormal(chain))  # products of projectors, (1, 2k, c, c // 2) -> (c_out, c_in, k, k)


def _orthonormal(chain: Any) -> Tensor:
    """The polar factors of a chain's raw matrices: one of RKO, 2k of BCOP."""
    raw = chain.original
    return polar_factor(raw.flatten(1) if isinstance(chain[-1], RKOParametrizer) else raw)
