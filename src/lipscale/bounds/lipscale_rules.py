"""Rules for lipscale's own layers and for containers."""

import math

from torch import nn

from lipscale.bounds.norms import conv_norm, matrix_norm
from lipscale.bounds.shapes import on_images
from lipscale.bounds.walk import Walk, register_rule
from lipscale.layers import (
    BatchCentering,
    Concatenate,
    ConvexResidual,
    GroupSort2,
    HalfAbs,
    L2NormPool2d,
    MirrorAverage,
    OrthoConv2d,
    OrthoLinear,
    PadToMultiple,
    Patches,
    Scale,
    Shift,
    Standardise,
    Sum,
)


def sequence_bound(net: nn.Sequential, bound: Walk) -> float:
    """One after the other: the product. A module that runs twice counts twice."""
    return math.prod(bound(module) for module in net)


def residual_bound(block: ConvexResidual, bound: Walk) -> float:
    """The blend: alpha B(branch) + (1 - alpha) sigma B(skip)."""
    branch, skip = bound(block.branch), abs(float(block.sigma)) * bound(block.skip)
    # as the network rounds it, and as float64 would: whichever is worse
    alphas = float(block.alpha.detach()), float(block.blend.detach().double().sigmoid())
    return max(alpha * branch + (1 - alpha) * skip for alpha in alphas)


def conv_bound(layer: OrthoConv2d, bound: Walk) -> float:
    """A square, orthogonal convolution. Circular padding: it refuses the sizes on which that is not circulant."""
    pads, stride = (layer.padding, layer.padding), (layer.stride, layer.stride)
    shape = bound.shape(layer) if layer.padding_mode == "zeros" else None
    return conv_norm(layer.weight, stride=stride, padding=(pads, pads), size=shape and shape[1:])


register_rule(nn.Sequential, sequence_bound)
register_rule(ConvexResidual, residual_bound)
register_rule(Sum, lambda block, bound: bound(block.branch) + bound(block.skip))
register_rule(Concatenate, lambda block, bound: math.hypot(*(bound(branch) for branch in block)))
register_rule(MirrorAverage, on_images(lambda block, bound: bound(block.net)))
register_rule(OrthoConv2d, on_images(conv_bound))
register_rule(OrthoLinear, lambda layer, bound: matrix_norm(layer.weight))
register_rule(Standardise, lambda layer, bound: 1 / float(layer.std.double().abs().min()))
register_rule(Scale, lambda layer, bound: abs(float(layer.factor)))
for kind in (BatchCentering, GroupSort2, HalfAbs, Shift):
    register_rule(kind, lambda layer, bound: 1.0)
for image_kind in (L2NormPool2d, PadToMultiple, Patches):
    register_rule(image_kind, on_images(lambda layer, bound: 1.0))
