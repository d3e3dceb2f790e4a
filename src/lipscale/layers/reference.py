"""The reference weights: orthogonium's adaptive orthogonal convolution and deel-torchlip's SpectralLinear."""

from typing import Any

import torch
from deel.torchlip import SpectralLinear
from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d
from orthogonium.layers.conv.AOC.bcop_x_rko_conv import BcopRkoConv2d
from orthogonium.layers.conv.AOC.fast_block_ortho_conv import fast_matrix_conv
from orthogonium.layers.conv.AOC.rko_conv import RKOParametrizer
from torch import Tensor, nn

from lipscale.layers.orthogonal import polar_factor
from lipscale.layers.scale import UnitWeight


class PeerKernel(UnitWeight):
    """Orthogonium's kernel. Only that is taken from the peer, never its forward: the padding is ours."""

    has_matrices = False

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.peer = AdaptiveOrthoConv2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=(kernel_size - 1) // 2, bias=False
        )
        self._start_orthogonal()

    @torch.no_grad()
    def _start_orthogonal(self) -> None:
        """Start where the iteration ends: a Gaussian start can be so ill-conditioned that it is far from it."""
        for chain in self.peer.parametrizations.values():
            chain.original.copy_(_orthonormal(chain).reshape(chain.original.shape))

    def unit(self, *, reduced: bool = False) -> Tensor:
        """Power iterations, a truncated Bjorck iteration, block composition."""
        return self.peer.weight

    def exact_unit(self) -> Tensor:
        """Orthogonium's composition of exact polar factors."""
        if isinstance(self.peer, BcopRkoConv2d):
            return fast_matrix_conv(_exact(self.peer, "weight_1"), _exact(self.peer, "weight_2")).contiguous()
        return _exact(self.peer, "weight")


class PeerMatrix(UnitWeight):
    """Torchlip's matrix."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.peer = SpectralLinear(in_features, out_features, bias=False)

    def unit(self, *, reduced: bool = False) -> Tensor:
        """One power iteration and a truncated Bjorck iteration."""
        return self.peer.weight

    def exact_unit(self) -> Tensor:
        """The polar factor of the raw matrix."""
        return polar_factor(self.peer.parametrizations.weight.original)


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
