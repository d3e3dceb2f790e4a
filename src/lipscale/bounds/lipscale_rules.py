"""Rules for lipscale's own layers and for containers."""

import math
from dataclasses import replace

from torch import nn

from lipscale import layers
from lipscale.bounds.operations import Elementwise
from lipscale.bounds.torch_rules import linear_bound, one, transposed_bound
from lipscale.bounds.walk import RULES, Rule, Walk, on_images
from lipscale.layers.norms import Geometry, norm_of


def sequence_bound(net: nn.Sequential, bound: Walk) -> float:
    """One after the other: the product. A module that runs twice counts twice."""
    return math.prod(bound(module) for module in net)


def residual_bound(block: layers.ConvexResidual, bound: Walk) -> float:
    """The blend: alpha B(branch) + (1 - alpha) sigma B(skip)."""
    branch, skip = bound(block.branch), abs(float(block.sigma)) * bound(block.skip)
    # as the network rounds it, and as float64 would: whichever is worse
    alphas = float(block.alpha.detach()), float(block.blend.detach().double().sigmoid())
    return max(alpha * branch + (1 - alpha) * skip for alpha in alphas)


def ortho_geometry(layer: layers.OrthoConv2d, bound: Walk) -> Geometry:
    """As with zero padding, also where it is circular: the layer refuses the sizes on which that is not circulant."""
    shape = bound.shape(layer)
    height, width = ((k - 1) * d + 1 for k, d in zip(layer.kernel_size, layer.dilation, strict=True))
    pads = (layer.pads[0], layer.pads[1])
    return Geometry((height, width), layer.stride, layer.dilation, layer.groups, pads, size=shape and shape[1:])


def ortho_conv_bound(layer: layers.OrthoConv2d, bound: Walk) -> float:
    """An orthogonal convolution; where it wraps around, it is no part of a larger torus."""
    where = ortho_geometry(layer, bound)
    return norm_of(layer.weight, where if layer.padding_mode == "zeros" else replace(where, size=None))


OURS: dict[type[nn.Module], Rule] = {
    nn.Sequential: sequence_bound,
    layers.ConvexResidual: residual_bound,
    layers.Sum: lambda block, bound: bound(block.branch) + bound(block.skip),
    layers.Concatenate: lambda block, bound: math.hypot(*(bound(branch) for branch in block)),
    **dict.fromkeys((layers.MirrorAverage, layers.EvenOdd), on_images(lambda block, bound: bound(block.net))),
    layers.EvenOddMap: lambda block, bound: max(bound(block.even), bound(block.odd)),
    layers.EvenOddActivation: lambda block, bound: bound(block.activation),
    layers.OrthoConv2d: on_images(ortho_conv_bound),
    layers.OrthoConvTranspose2d: on_images(transposed_bound),
    layers.OrthoLinear: linear_bound,
    layers.Standardise: lambda layer, bound: 1 / float(layer.std.double().abs().min()),
    Elementwise: lambda layer, bound: layer.bound(),
    layers.Scale: lambda layer, bound: abs(float(layer.factor)),
    **dict.fromkeys((layers.BatchCentering, layers.GroupSort2, layers.HalfAbs, layers.Shift), one),
    **dict.fromkeys((layers.L2NormPool2d, layers.PadToMultiple, layers.Patches), on_images(one)),
    **dict.fromkeys((layers.EvenOddPatches, layers.BatchLast), on_images(one)),
    layers.Even: one,
}
RULES.update(OURS)
