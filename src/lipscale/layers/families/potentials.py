"""Residual families: square blocks x - 2 M^T relu(M x + b), and orthogonal layers where widths change."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn

from lipscale.layers.conv import ProjectorKernel
from lipscale.layers.families.family import Conv, Family, MatrixOf, kernel_conv
from lipscale.layers.linear import OrthoLinear
from lipscale.layers.operators import Potential
from lipscale.layers.scale import UnitWeight

Source = Callable[[int, int], UnitWeight]  # (channels, kernel_size) -> a kernel (channels, channels, k, k) of norm <= 1


def potential_family(name: str, paper: str, cost: str, source: Source) -> Family:
    """The family of a way to make ||M|| <= 1.

    A block keeps its width, so a convolution that changes it is an orthogonal 1 x 1 convolution (aoc) and then the
    block; a stride makes channels of patches first. A dense layer is a block where it is square, else an orthogonal
    matrix: a head has to be linear.
    """
    conv, linear = partial(_conv, source), partial(_linear, source)
    return Family(name, paper, cost, conv, linear, sees_patches=True, needs_odd=True)


def _conv(source: Source, asked: Conv) -> nn.Module:
    block = Potential(source(asked.outputs, asked.kernel_size), asked.outputs, padding_mode=asked.padding_mode)
    if asked.inputs == asked.outputs:
        return block
    change = replace(asked, kernel_size=1, bias=False)
    return nn.Sequential(kernel_conv(ProjectorKernel, change), block)


def _linear(source: Source, inputs: int, outputs: int, *, bias: bool = True) -> nn.Module:
    if inputs != outputs:
        return OrthoLinear(inputs, outputs, bias=bias)
    return Potential(MatrixOf(source(inputs, 1)), inputs)
