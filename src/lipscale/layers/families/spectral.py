"""spectral: W / ||W|| (Miyato et al., 2018), with the norm of the operator, and from above."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lipscale.layers.families.family import Family, kernel_conv, kernel_linear
from lipscale.layers.families.formula import Start, as_kernel, random_taps, spread_taps
from lipscale.layers.norms import conv_norm, matrix_norm
from lipscale.layers.scale import UnitWeight

SIDE = 8  # pixels of the torus on which training estimates the norm of a kernel
START = 30  # power iterations before the first step; then one a step follows the weights


class Normalised(UnitWeight):
    """K / ||K||: a power iteration's estimate in training, from below; the proven bound in evaluation, from above.

    torch's own `spectral_norm` divides by the estimate in evaluation, too, and a convolution by the norm of its
    flattened kernel, which is not the operator's: up to k times less.
    """

    probe: Tensor

    def __init__(self, inputs: int, outputs: int, kernel_size: int, stride: int, *, start: Start = random_taps) -> None:
        super().__init__()
        self.stride = stride
        self.taps = start(outputs, inputs, kernel_size)
        side = 1 if kernel_size == stride else max(SIDE, 2 * kernel_size)
        self.register_buffer("probe", torch.randn(1, inputs * stride**2, side, side))
        with torch.no_grad():
            for _ in range(START):
                self._norm(self.kernel(exact=False))

    def kernel(self, *, exact: bool) -> Tensor:
        """K, before it is divided by its norm."""
        return as_kernel(self.taps.detach().double() if exact else self.taps)

    def unit(self, *, reduced: bool = False) -> Tensor:
        """K over the estimate of its norm."""
        kernel = self.kernel(exact=False)
        return kernel / self._norm(kernel)

    def exact_unit(self) -> Tensor:
        """K over the bound of its norm, on every grid."""
        kernel = self.kernel(exact=True)
        if kernel.shape[-1] == self.stride:  # patches that do not overlap: a matrix
            return kernel / max(matrix_norm(kernel.flatten(1)), torch.finfo(kernel.dtype).tiny)
        return kernel / max(conv_norm(kernel, stride=(self.stride, self.stride)), torch.finfo(kernel.dtype).tiny)

    def _norm(self, kernel: Tensor) -> Tensor:
        """||K x|| of the unit image x that has been most expanded so far; a training step moves it one iteration."""
        kernel = F.pad(kernel, (0, -kernel.shape[-1] % self.stride) * 2)
        kernel = F.pixel_unshuffle(kernel, self.stride)  # at stride 1, on the interleaved sub-images
        reach = kernel.shape[-1] - 1
        with torch.no_grad():
            image = F.conv2d(F.pad(self.probe, (0, reach) * 2, mode="circular"), kernel)
            back = F.conv2d(F.pad(image, (reach, 0) * 2, mode="circular"), kernel.transpose(0, 1).flip(-1, -2))
            size = back.norm()
            # a kernel of zeros, or one that underflows, tells nothing, and must not end the iteration for good
            if size > torch.finfo(back.dtype).tiny:
                self.probe.copy_(back / size)
            probe = self.probe.clone()
        norm = F.conv2d(F.pad(probe, (0, reach) * 2, mode="circular"), kernel).norm()
        return norm.clamp_min(torch.finfo(kernel.dtype).tiny)


# all singular values start at 1: of a Gaussian matrix most are so far below the largest that little gets through
source = partial(Normalised, start=spread_taps)
SPECTRAL = Family(
    "spectral",
    "Miyato et al., 2018",
    "one power iteration on 8 x 8 pixels",
    partial(kernel_conv, source),
    partial(kernel_linear, source),
)
