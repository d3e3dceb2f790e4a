"""1-Lipschitz parts with a scale, one idea a file."""

from lipscale.layers.activation import GroupSort2
from lipscale.layers.centering import BatchCentering, estimate_means
from lipscale.layers.conv import OrthoConv2d
from lipscale.layers.input import PadToMultiple, Standardise
from lipscale.layers.linear import OrthoLinear
from lipscale.layers.orthogonal import polar_factor
from lipscale.layers.pooling import L2NormPool2d
from lipscale.layers.residual import ConvexResidual
from lipscale.layers.scale import AtScale, ScaledLayer

__all__ = [
    "AtScale",
    "BatchCentering",
    "ConvexResidual",
    "GroupSort2",
    "L2NormPool2d",
    "OrthoConv2d",
    "OrthoLinear",
    "PadToMultiple",
    "ScaledLayer",
    "Standardise",
    "estimate_means",
    "polar_factor",
]
