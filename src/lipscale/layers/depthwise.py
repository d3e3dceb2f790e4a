"""Kernels of one channel each, as depthwise convolutions have them: divided by a bound of their norm."""

import torch
from torch import Tensor, nn

from lipscale.layers.norms import Pair, dilated, row_bounds, split_phases
from lipscale.layers.scale import UnitWeight

NOISE = 0.1  # of the taps to start from, beside the one in the middle


class DepthwiseKernel(UnitWeight):
    """K_c / sqrt(sum_s |G_s|), channel by channel, with the autocorrelations G_s = sum_t K_{c,t+s} K_{c,t}.

    A single channel has no orthogonal kernels but shifts. These are 1-Lipschitz for any taps (AOL's formula, Prach and
    Lampert, 2022, of one channel), start near a shift, and all channels are computed at once.
    """

    has_matrices = False

    def __init__(self, channels: int, kernel_size: Pair, stride: Pair, dilation: Pair) -> None:
        super().__init__()
        self.stride, self.dilation = stride, dilation
        taps = NOISE * torch.randn(channels, 1, *kernel_size)
        taps[:, :, kernel_size[0] // 2, kernel_size[1] // 2] += 1
        self.taps = nn.Parameter(taps)

    def unit(self, *, reduced: bool = False) -> Tensor:
        """The kernels in the parameter's own precision."""
        return self._divided(self.taps)

    def exact_unit(self) -> Tensor:
        """The same in float64."""
        return self._divided(self.taps.detach().double())

    def _divided(self, taps: Tensor) -> Tensor:
        bounds = row_bounds(split_phases(dilated(taps, self.dilation), self.stride))
        # taps of zeros stay zeros; a larger divisor than the bound is sound
        return taps / bounds.clamp_min(torch.finfo(taps.dtype).tiny ** 0.5)[:, None, None, None]
