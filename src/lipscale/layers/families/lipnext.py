"""lipnext: no convolution (Hu et al., 2026), but shifts between orthogonal matrices, and |x| on half the channels."""

from dataclasses import replace

from torch import nn

from lipscale.layers.activation import HalfAbs
from lipscale.layers.conv import ProjectorKernel
from lipscale.layers.families.family import Conv, Family, kernel_conv
from lipscale.layers.linear import OrthoLinear
from lipscale.layers.shift import ShiftChannels


def _conv(asked: Conv) -> nn.Module:
    """Rotate the channels of a pixel, shift some of them by as far as the kernel would reach, mix: W S R x."""
    if asked.kernel_size == 1:
        return kernel_conv(ProjectorKernel, asked)
    channels = max(asked.inputs, asked.outputs)
    rotation = replace(asked, outputs=channels, kernel_size=1, bias=False)
    shift = ShiftChannels(asked.kernel_size // 2, padding_mode=asked.padding_mode)
    mixing = replace(asked, inputs=channels, kernel_size=1)
    return nn.Sequential(kernel_conv(ProjectorKernel, rotation), shift, kernel_conv(ProjectorKernel, mixing))


LIPNEXT = Family(
    "lipnext",
    "Hu et al., 2026",
    "a Cholesky decomposition for each of two matrices; 1 x 1 instead of k x k",
    _conv,
    OrthoLinear,
    ("circular", "zeros"),
    sees_patches=True,
    needs_odd=True,
    least_channels=4,
    activation=HalfAbs,
)
