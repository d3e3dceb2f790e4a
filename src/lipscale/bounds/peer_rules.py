"""Rules for the layers of deel-torchlip and orthogonium, in evaluation."""

import math
from typing import Any

import deel.torchlip as torchlip
from deel.torchlip.modules.unconstrained import PadConv1d, PadConv2d
from orthogonium.layers import custom_activations, normalization, residual
from orthogonium.layers.conv.AOC.bcop_x_rko_conv import BcopRkoConv2d
from orthogonium.layers.conv.AOC.fast_block_ortho_conv import FastBlockConv2d
from orthogonium.layers.conv.AOC.rko_conv import RKOConv2d
from orthogonium.layers.linear import OrthoLinear, UnitNormLinear
from orthogonium.reparametrizers import BatchedBjorckOrthogonalization, BatchedPowerIteration
from torch import Tensor, nn

from lipscale.bounds.torch_rules import conv_bound, geometry, linear_bound, one
from lipscale.bounds.walk import RULES, Walk, on_images
from lipscale.errors import UserError
from lipscale.layers.norms import matrix_norm
from lipscale.layers.projectors import as_pair

# float32 rounding of a composed kernel
MOVING = 1 + 1e-4


def ortho_linear_bound(layer: nn.Module, bound: Walk) -> float:
    """Orthogonium's linear layer."""
    return _moving(layer, measured=linear_bound(layer, bound), at_one=1.0)


def ortho_conv_bound(layer: Any, bound: Walk) -> float:
    """Orthogonium's convolutions, on which circular padding is sound at stride 1 and on even sizes only."""
    at_one = geometry(layer, bound).padding_factor()
    return _moving(layer, measured=conv_bound(layer, bound), at_one=at_one)


def _moving(layer: nn.Module, *, measured: float, at_one: float) -> float:
    """A bound that still holds after orthogonium's power iteration has moved the weights, as it does in evaluation.

    Bjorck's map 1.5 s - 0.5 s^3 takes singular values in [0, 2] into [-1, 1]. So whatever the power iteration says,
    the weights stay 1-Lipschitz as long as it under-estimates by less than a factor of 2; and its estimate only rises.
    """
    if not any(isinstance(m, BatchedPowerIteration) for m in layer.modules()):
        return measured
    bjorck = [m for m in layer.modules() if isinstance(m, BatchedBjorckOrthogonalization)]
    if not bjorck or any(m.beta != 0.5 or m.niters < 1 for m in bjorck):
        raise UserError(f"{type(layer).__name__}: its power iteration moves the weights in evaluation: no rule")
    for chain in layer.parametrizations.values():  # type: ignore[operator]
        for power in (m for m in chain.modules() if isinstance(m, BatchedPowerIteration)):
            _require_good_estimate(power, chain.original.detach().double())
    return max(measured, at_one) * MOVING


def _require_good_estimate(power: Any, raw: Tensor) -> None:
    raw = raw.reshape(*power.weight_shape)
    estimate = (power.u.double().mT @ raw @ power.v.double()).flatten()
    for matrix, value in zip(raw.reshape(-1, *raw.shape[-2:]), estimate, strict=True):
        if matrix_norm(matrix) > 2 * float(value):
            raise UserError("orthogonium's power iteration has not settled: run a few forward passes first")


def torchlip_conv_bound(layer: Any, bound: Walk) -> float:
    """Torchlip's convolutions are torch's, but for symmetric padding, which repeats the border pixel."""
    if layer.old_padding_mode.lower() == "symmetric":
        raise UserError("symmetric padding of more than one pixel has no rule: use zeros")
    return conv_bound(layer, bound)


def scaled_bound(layer: Any, bound: Walk) -> float:
    """Torchlip's layers of one constant."""
    return abs(layer._coefficient_lip)


def centering_bound(layer: Any, bound: Walk) -> float:
    """Centering is a projection or a shift, unless it broadcasts its input or takes means over samples."""
    bound.require_equal_shapes(layer)
    if isinstance(layer, torchlip.LayerCentering):
        bound.require_samples_apart(layer, [layer.dim] if isinstance(layer.dim, int) else list(layer.dim or []))
    if getattr(layer, "normalize", False):
        raise UserError(f"{type(layer).__name__} divides by a standard deviation: no rule")
    return 1.0


def sorting_bound(layer: Any, bound: Walk) -> float:
    """Torchlip's and orthogonium's MaxMin, along a dimension that is not the batch."""
    axis = layer.axis if isinstance(layer, custom_activations.MaxMin) else layer._dim
    bound.require_samples_apart(layer, [1 if axis is None else axis])
    return abs(getattr(layer, "_coefficient_lip", 1.0))


def pool_bound(layer: Any, bound: Walk) -> float:
    """Norms or scaled means of disjoint windows; at the border other settings would divide by another number."""
    is_mean = isinstance(layer, torchlip.ScaledAvgPool2d)
    disjoint = layer.stride in (None, layer.kernel_size) and not (is_mean and any(as_pair(layer.padding)))
    if not disjoint or getattr(layer, "norm_type", 2) != 2:
        raise UserError(f"{type(layer).__name__} with overlapping windows, padding or another norm: no rule")
    if layer.ceil_mode or getattr(layer, "divisor_override", None):
        raise UserError(f"{type(layer).__name__} with ceil_mode or divisor_override rescales windows: no rule")
    if not is_mean:
        return abs(layer._coefficient_lip)
    return abs(layer._coefficient_lip * layer.scalingFactor) / math.sqrt(math.prod(as_pair(layer.kernel_size)))


def prescaled_bound(block: Any, bound: Walk) -> float:
    """(x + fn(alpha x)) / (1 + |alpha|)."""
    bound.require_equal_shapes(block.fn)
    alpha = abs(float(block.alpha.detach()))
    return (1 + alpha * bound(block.fn)) / (1 + alpha)


def additive_bound(block: Any, bound: Walk) -> float:
    """a x + (1 - a) fn(x) with a = sigmoid(alpha)."""
    bound.require_equal_shapes(block.fn)
    a = float(block.alpha.detach().double().sigmoid())
    return a + (1 - a) * bound(block.fn)


RULES.update(
    {
        torchlip.Sequential: lambda net, bound: math.prod(map(bound, net)),
        **dict.fromkeys((torchlip.SpectralLinear, torchlip.FrobeniusLinear, UnitNormLinear), linear_bound),
        **dict.fromkeys((PadConv2d, torchlip.SpectralConv2d, torchlip.FrobeniusConv2d), torchlip_conv_bound),
        **dict.fromkeys((PadConv1d, torchlip.SpectralConv1d), torchlip_conv_bound),
        **dict.fromkeys((torchlip.GroupSort, torchlip.GroupSort2, torchlip.FullSort), scaled_bound),
        **dict.fromkeys((torchlip.ScaledAdaptiveAvgPool2d, torchlip.ScaledAdaptativeL2NormPool2d), scaled_bound),
        **dict.fromkeys((torchlip.ScaledAvgPool2d, torchlip.ScaledL2NormPool2d), pool_bound),
        **dict.fromkeys((torchlip.InvertibleDownSampling, torchlip.InvertibleUpSampling), on_images(one)),
        **dict.fromkeys((torchlip.BatchCentering, torchlip.LayerCentering), centering_bound),
        **dict.fromkeys((normalization.BatchCentering2D, normalization.LayerCentering2D), centering_bound),
        OrthoLinear: ortho_linear_bound,
        **dict.fromkeys((FastBlockConv2d, RKOConv2d, BcopRkoConv2d), ortho_conv_bound),
        custom_activations.Abs: one,
        **dict.fromkeys((torchlip.MaxMin, custom_activations.MaxMin), sorting_bound),
        residual.ConcatResidual: lambda block, bound: max(1.0, bound(block.fn)),
        residual.AdditiveResidual: additive_bound,
        residual.PrescaledAdditiveResidual: prescaled_bound,
    }
)
