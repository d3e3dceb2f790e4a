"""How far floating-point arithmetic can take a network's logits from what its weights define: a proof, layer by layer.

In exact arithmetic a layer m is B-Lipschitz. A computer evaluates it at a slightly wrong input, with an error of its
own. Along a network two numbers are carried, both as affine functions of the norm ||x|| of its input:

    N   bounds the norm of the exact values,          N' = B N + ||m(0)||
    E   bounds how far the computed ones are off,     E' = B E + (what computing m adds for inputs of norm N + E)

A module that is not known here is taken to be off by a million units in the last place: the one assumption.
What a layer adds is the classical forward error of a sum of n products in any order: gamma_n = n u / (1 - n u) times
the sum of their magnitudes (Higham, 2002, Sec. 3.1). It holds for plain and fused sums, and not for TF32 or Winograd's
convolutions, which certificates in float64 never meet. Overflow and underflow are left out: networks are far from both.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from lipscale.bounds import Walk, is_plain_sequence, matrix_norm
from lipscale.bounds.norms import dilated, padding_factor, split_phases
from lipscale.bounds.torch_rules import geometry
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

# the error of a module that has no rule here, in units of the last place of its largest possible output: more than a
# sum of a million terms can be off
UNKNOWN = 1e6
FUNCTION = 8  # the same for an elementary function of one number, and for what surrounds it


@dataclass(frozen=True)
class Affine:
    """slope * ||x|| + offset, both at least zero."""

    slope: float
    offset: float

    def __add__(self, other: "Affine") -> "Affine":
        return Affine(self.slope + other.slope, self.offset + other.offset)

    def __mul__(self, factor: float) -> "Affine":
        return Affine(self.slope * factor, self.offset * factor)

    def at(self, norms: Tensor) -> Tensor:
        """The value for inputs of these norms, (N,)."""
        return (self.slope * norms + self.offset).nan_to_num(nan=math.inf, posinf=math.inf)


@dataclass(frozen=True)
class Values:
    """What is known of the values at one place of the network: their norm, and how far they are off."""

    norm: Affine
    error: Affine

    @property
    def computed(self) -> Affine:
        """The norm of the values as they were computed."""
        return self.norm + self.error


@dataclass(frozen=True)
class Layer:
    """A B-Lipschitz layer: the norm of m(0), and the error that it adds to an input of norm M, rate * M + offset."""

    lipschitz: float
    at_zero: float = 0.0
    rate: float = 0.0
    offset: float = 0.0

    def __call__(self, values: Values) -> Values:
        """The values behind the layer."""
        added = values.computed * self.rate + Affine(0.0, self.offset)
        return Values(values.norm * self.lipschitz + Affine(0.0, self.at_zero), values.error * self.lipschitz + added)


def forward_error(net: nn.Module, walk: Walk, dtype: torch.dtype) -> Affine:
    """A bound on ||fl(f)(x) - f(x)|| over all x, where `dtype` computes f.

    Args:
        net: The network in evaluation, in ordinary layers where it has ones (see `export_plain`).
        walk: Knows the Lipschitz constant of each module, and the shape of its inputs.
        dtype: torch.float32 or torch.float64.

    Returns:
        The bound as an affine function of ||x||.
    """
    unit = torch.finfo(dtype).eps / 2
    inputs = Values(Affine(1.0, 0.0), Affine(0.0, 0.0))  # x itself is what it is
    error = _through(net, inputs, walk, unit).error * (1 + 1e-6)  # the rounding of these few numbers themselves
    # where nothing is known, as of a module that runs at two sizes, nothing is promised
    return Affine(*(math.inf if math.isnan(part) else part for part in (error.slope, error.offset)))


def _through(module: nn.Module, values: Values, walk: Walk, unit: float) -> Values:
    """The values behind a module."""
    if isinstance(module, nn.Sequential) and is_plain_sequence(module):
        for child in module:
            values = _through(child, values, walk, unit)
        return values
    kind: Any = type_before_parametrizations(module)
    if kind in (ConvexResidual, Sum):
        return _joined(cast(Any, module), values, walk, unit)
    if kind is MirrorAverage:  # of a sum and half of it
        inner = _through(cast(MirrorAverage, module).net, values, walk, unit)
        return Values(inner.norm, inner.error + inner.computed * (4 * unit))
    if kind is Concatenate:
        parts = [_through(branch, values, walk, unit) for branch in cast(Concatenate, module)]
        return Values(*(_total([getattr(part, name) for part in parts]) for name in ("norm", "error")))
    # exactly this type: a subclass may compute something else
    return RULES.get(kind, _unknown)(module, walk, unit)(values)


def _total(parts: list[Affine]) -> Affine:
    return Affine(math.hypot(*(p.slope for p in parts)), math.hypot(*(p.offset for p in parts)))


def _joined(block: "ConvexResidual | Sum", values: Values, walk: Walk, unit: float) -> Values:
    """alpha * branch + (1 - alpha) * sigma * skip: the two paths' errors, blended, and that of blending them."""
    branch, skip = _through(block.branch, values, walk, unit), _through(block.skip, values, walk, unit)
    sigma, alpha = abs(float(getattr(block, "sigma", 1.0))), 1.0
    beta = 1.0
    if isinstance(block, ConvexResidual):
        alpha = float(block.alpha.detach().double())
        beta = (1 - alpha) * sigma
    # alpha is a function of one number, and the blend takes a handful of operations on the two paths
    size = branch.computed + skip.computed * sigma
    added = size * (2 * FUNCTION * unit)
    return Values(branch.norm * alpha + skip.norm * beta, branch.error * alpha + skip.error * beta + added)


def gamma(terms: float, unit: float) -> float:
    """gamma_n = n u / (1 - n u): the relative error of a sum of n products in any order."""
    return terms * unit / (1 - terms * unit) if terms * unit < 0.5 else math.inf


def _pixels(module: nn.Module, walk: Walk) -> float:
    """sqrt(H W) of a module's inputs: how often a channel's constant counts."""
    shape = walk.shape(module)
    return math.inf if shape is None else math.sqrt(math.prod(shape[1:]))


def _bias(layer: Any) -> float:
    """The norm of the bias in use."""
    bias = layer.scaled_bias() if isinstance(layer, OrthoLinear | OrthoConv2d) else layer.bias
    return 0.0 if bias is None else float(bias.detach().double().norm())


def _linear(layer: Any, walk: Walk, unit: float) -> Layer:
    shape = walk.shape(layer)
    times = math.inf if shape is None else math.sqrt(math.prod(shape[:-1]))  # a bias acts on every row of an input
    error, bias = gamma(layer.in_features + 2, unit), _bias(layer) * times if _bias(layer) else 0.0
    return Layer(walk(layer), bias, error * matrix_norm(layer.weight.detach().abs()), error * bias)


def _conv(layer: Any, walk: Walk, unit: float) -> Layer:
    """|K| has its largest response at frequency zero, so its norm is that of the sum of its taps."""
    where = _geometry(layer, walk)
    weight = layer.weight.detach().double().abs()
    wide = dilated(weight, where.pop("dilation"))
    taps = (split_phases(kernel, where["stride"]).sum((2, 3)) for kernel in wide.chunk(where.pop("groups")))
    largest = max(map(matrix_norm, taps)) * padding_factor(**where)
    bias, error = _bias(layer) * _output_pixels(where), gamma(weight[0].numel() + 2, unit)
    return Layer(walk(layer), bias, error * largest, error * bias)


def _geometry(layer: Any, walk: Walk) -> dict[str, Any]:
    """Extent, stride, padding, input size and groups of a 2-d convolution, torch's or ours."""
    if isinstance(layer, OrthoConv2d):
        shape, pads = walk.shape(layer), (layer.padding, layer.padding)
        where: dict[str, Any] = {"stride": (layer.stride,) * 2, "padding": (pads, pads), "padding_mode": "zeros"}
        # it refuses the sizes on which circular padding is not circulant
        return {
            **where,
            "size": shape and shape[1:],
            "extent": (layer.kernel_size,) * 2,
            "dilation": (1, 1),
            "groups": 1,
        }
    where = geometry(layer, walk)
    extent = tuple((k - 1) * d + 1 for k, d in zip(layer.kernel_size, where["dilation"], strict=True))
    return {**where, "extent": extent, "groups": layer.groups}


def _output_pixels(where: dict[str, Any]) -> float:
    """sqrt(H' W') of a convolution's outputs."""
    if where["size"] is None:
        return math.inf
    sides = zip(where["size"], where["padding"], where["extent"], where["stride"], strict=True)
    return math.sqrt(math.prod((size + sum(pads) - width) // stride + 1 for size, pads, width, stride in sides))


def _shift(layer: Shift, walk: Walk, unit: float) -> Layer:
    size = float(layer.shift.double().norm()) * _pixels(layer, walk)
    return Layer(1.0, size, unit, unit * size)


def _centering(layer: BatchCentering, walk: Walk, unit: float) -> Layer:
    parts = layer.scale.double() * torch.stack((layer.bias.detach(), layer.known_mean())).double()
    size = float(parts.norm(dim=1).sum()) * _pixels(layer, walk)
    return Layer(1.0, size, unit, 4 * unit * size)


def _standardise(layer: Standardise, walk: Walk, unit: float) -> Layer:
    size = float((layer.mean.double() / layer.std.double()).norm()) * _pixels(layer, walk)
    return Layer(walk(layer), size, 3 * unit * walk(layer), 3 * unit * size)


def _norm_pool(layer: L2NormPool2d, walk: Walk, unit: float) -> Layer:
    return Layer(1.0, rate=gamma(_pixels(layer, walk) ** 2 + 3, unit))


def _average(layer: nn.Module, walk: Walk, unit: float) -> Layer:
    return Layer(walk(layer), rate=gamma(_pixels(layer, walk) ** 2 + 2, unit) * max(1.0, walk(layer)))


def _batch_norm(layer: Any, walk: Walk, unit: float) -> Layer:
    slope = 1 / (layer.running_var.double() + layer.eps).sqrt()
    if layer.weight is not None:
        slope = slope * layer.weight.detach().double().abs()
    bias = 0.0 if layer.bias is None else float(layer.bias.detach().double().norm())
    size = (float((slope * layer.running_mean.double()).norm()) + bias) * _pixels(layer, walk)
    return Layer(walk(layer), size, FUNCTION * unit * walk(layer), FUNCTION * unit * size)


def _exact(layer: nn.Module, walk: Walk, unit: float) -> Layer:
    return Layer(walk(layer))


def _function(layer: nn.Module, walk: Walk, unit: float) -> Layer:
    """An elementary function of each number; m(0) is measured."""
    lipschitz, size = walk(layer), _at_zero(layer, walk)
    return Layer(lipschitz, size, FUNCTION * unit * lipschitz, FUNCTION * unit * size)


def _unknown(layer: nn.Module, walk: Walk, unit: float) -> Layer:
    lipschitz, size = walk(layer), _at_zero(layer, walk)
    return Layer(lipschitz, size, UNKNOWN * unit * lipschitz, UNKNOWN * unit * size)


def _at_zero(layer: nn.Module, walk: Walk) -> float:
    shape = walk.shape(layer)
    if shape is None:
        return math.inf
    like = next((t for t in [*layer.parameters(), *layer.buffers()] if t.is_floating_point()), torch.zeros(()))
    with torch.no_grad():
        return float(layer(like.new_zeros(1, *shape)).double().norm()) * (1 + 1e-3)


RULES: dict[type[nn.Module], Callable[[Any, Walk, float], Layer]] = {
    nn.Linear: _linear,
    OrthoLinear: _linear,
    nn.Conv2d: _conv,
    OrthoConv2d: _conv,
    BatchCentering: _centering,
    Shift: _shift,
    Standardise: _standardise,
    L2NormPool2d: _norm_pool,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _batch_norm),
    **dict.fromkeys((nn.AvgPool2d, nn.AdaptiveAvgPool2d), _average),
    **dict.fromkeys((GroupSort2, HalfAbs, PadToMultiple, Patches, nn.Identity, nn.Flatten, nn.Unflatten), _exact),
    **dict.fromkeys((nn.PixelUnshuffle, nn.PixelShuffle, nn.ChannelShuffle, nn.ReLU, nn.MaxPool2d), _exact),
    **dict.fromkeys((nn.ZeroPad2d, nn.Dropout), _exact),
    **dict.fromkeys((nn.CircularPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d), _exact),
    **dict.fromkeys((Scale, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh), _function),
}
