"""1-Lipschitz parts with a scale, one idea a file."""

from lipscale.layers.activation import GroupSort2, HalfAbs
from lipscale.layers.affine import PadToMultiple, Scale, Shift, Standardise
from lipscale.layers.centering import BatchCentering, batch_means, estimate_means
from lipscale.layers.circular import CircularConv2d, PlainCircular
from lipscale.layers.conv import OrthoConv2d, OrthoConvTranspose2d
from lipscale.layers.evaluation import evaluation_mode
from lipscale.layers.layout import BatchLast
from lipscale.layers.linear import OrthoLinear
from lipscale.layers.mirror import MirrorAverage, mirrored
from lipscale.layers.operators import Exponential, PlainExponential, PlainPotential, Potential
from lipscale.layers.orthogonal import polar_factor
from lipscale.layers.patches import Patches
from lipscale.layers.pooling import L2NormPool2d
from lipscale.layers.reflection import Even, EvenOdd, EvenOddActivation, EvenOddMap, EvenOddPatches
from lipscale.layers.residual import Concatenate, ConvexResidual, Sum
from lipscale.layers.scale import AtScale, ScaledLayer
from lipscale.layers.shift import ShiftChannels

__all__ = [
    "AtScale",
    "BatchCentering",
    "BatchLast",
    "CircularConv2d",
    "Concatenate",
    "ConvexResidual",
    "Even",
    "EvenOdd",
    "EvenOddActivation",
    "EvenOddMap",
    "EvenOddPatches",
    "Exponential",
    "GroupSort2",
    "HalfAbs",
    "L2NormPool2d",
    "MirrorAverage",
    "OrthoConv2d",
    "OrthoConvTranspose2d",
    "OrthoLinear",
    "PadToMultiple",
    "Patches",
    "PlainCircular",
    "PlainExponential",
    "PlainPotential",
    "Potential",
    "Scale",
    "ScaledLayer",
    "Shift",
    "ShiftChannels",
    "Standardise",
    "Sum",
    "batch_means",
    "estimate_means",
    "evaluation_mode",
    "mirrored",
    "polar_factor",
]
