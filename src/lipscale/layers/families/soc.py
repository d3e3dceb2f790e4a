"""soc: skew orthogonal convolutions (Singla and Feizi, 2021), the exponential of a skew kernel."""

import torch
from torch import Tensor, nn

from lipscale.layers.families.family import Conv, Family, MatrixOf
from lipscale.layers.families.formula import Formula, as_kernel, random_taps
from lipscale.layers.norms import adjoint
from lipscale.layers.operators import Exponential


class SkewKernel(Formula):
    """D^-1/2 S D^-1/2 with S = K - K^T skew and d_i = sum_j |S|_ij: skew, and of norm at most 1 (Perron).

    Scaling rows alone, as the peer's fast version does, leaves no skew kernel: its exponential had a norm of 1.20.
    """

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.taps = random_taps(channels, channels, kernel_size)

    def weight_of(self, taps: Tensor) -> Tensor:  # type: ignore[override]
        """S, rescaled."""
        kernel = as_kernel(taps)
        skew = kernel - adjoint(kernel)
        sums = skew.abs().sum((1, 2, 3))
        divisor = (sums[:, None] * sums).sqrt()  # symmetric to the last bit, so what is divided by it stays skew
        return skew / divisor.clamp_min(torch.finfo(sums.dtype).tiny)[:, :, None, None]


def _conv(asked: Conv) -> nn.Module:
    source = SkewKernel(max(asked.inputs, asked.outputs), asked.kernel_size)
    return Exponential(source, asked.inputs, asked.outputs, bias=asked.bias, padding_mode=asked.padding_mode)


def _linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Module:
    return Exponential(MatrixOf(SkewKernel(max(inputs, outputs), 1)), inputs, outputs, bias=bias)


SOC = Family(
    "soc",
    "Singla and Feizi, 2021",
    "nothing for the weight, three convolutions instead of one",
    _conv,
    _linear,
    sees_patches=True,
    needs_odd=True,
)
