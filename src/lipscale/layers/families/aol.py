"""aol: almost-orthogonal layers (Prach and Lampert, 2022), a kernel whose input channels are rescaled."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lipscale.layers.families.family import Family, kernel_conv, kernel_linear
from lipscale.layers.families.formula import Formula, as_kernel, spread_taps
from lipscale.layers.norms import absolute_gram, adjoint


class RescaledKernel(Formula):
    """K diag(d)^-1/2 with d_i = sum_j |K^T K|_ij: then no matrix |K^T K| is larger than 1 (Perron), for any K.

    With a stride the sums are those of the interleaved sub-images, which are channels of their own. The sums of
    stride 1 would be sound, too, and up to a factor `stride` looser.
    """

    def __init__(self, inputs: int, outputs: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.taps = spread_taps(outputs, inputs, kernel_size)

    def weight_of(self, taps: Tensor) -> Tensor:  # type: ignore[override]
        """The kernel, rescaled."""
        kernel = as_kernel(taps)
        side = kernel.shape[-1]
        phases = F.pixel_unshuffle(F.pad(kernel, (0, -side % self.stride) * 2), self.stride)
        sums = absolute_gram(adjoint(phases)).sum(1)
        # a channel that does nothing has the sum 0; a larger divisor than the sum is sound
        scale = sums.clamp_min(torch.finfo(sums.dtype).tiny).rsqrt()
        return F.pixel_shuffle(phases * scale[:, None, None], self.stride)[..., :side, :side].contiguous()


AOL = Family(
    "aol",
    "Prach and Lampert, 2022",
    "the autocorrelation of the kernel, (2 k - 1)^2 c^3 products",
    partial(kernel_conv, RescaledKernel),
    partial(kernel_linear, RescaledKernel),
)
