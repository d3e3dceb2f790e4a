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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from lipscale import layers
from lipscale.bounds import Walk, is_plain_sequence, matrix_norm
from lipscale.bounds.family_rules import absolute_sum
from lipscale.bounds.lipscale_rules import ortho_geometry
from lipscale.bounds.operations import Elementwise
from lipscale.bounds.torch_rules import batch_norm_gains, geometry
from lipscale.bounds.walk import rule_of
from lipscale.certificates.affine import Affine, Layer, Values
from lipscale.layers.norms import dilated, split_phases

# the error of a module that has no rule here, in units of the last place of its largest possible output: more than a
# sum of a million terms can be off
UNKNOWN = 1e6
FUNCTION = 8  # the same for an elementary function of one number, and for what surrounds it


Rule = Callable[[Any, Walk, float], Layer]  # (module, walk, unit of the last place) -> what it does


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
    if kind in (layers.ConvexResidual, layers.Sum):
        return _joined(cast(Any, module), values, walk, unit)
    if kind is layers.MirrorAverage:  # half of a sum
        inner = _through(cast(Any, module).net, values, walk, unit)
        return Values(inner.norm, inner.error + inner.computed * (FUNCTION * unit))
    if kind is layers.EvenOdd:
        # The even and the odd part of a kernel may be multiplied each by itself, and making them takes three units:
        # two errors of gamma_n+5, sqrt(2) of it together, and three times gamma_n+2 is more for every n >= 1.
        inner = _through(cast(Any, module).net, values, walk, unit)
        return Values(inner.norm, inner.error * 3.0 + inner.computed * (FUNCTION * unit))
    if kind is layers.EvenOddActivation:  # of two sides, between rotations by 45 degrees, each a sum of two products
        turned = Values(values.norm, values.error + values.computed * (FUNCTION * unit))
        inner = _block_diagonal([cast(layers.EvenOddActivation, module).activation] * 2, turned, walk, unit)
        return Values(inner.norm, inner.error + inner.computed * (FUNCTION * unit))
    if kind is layers.EvenOddMap:
        return _block_diagonal([cast(Any, module).even, cast(Any, module).odd], values, walk, unit)
    if kind is layers.Concatenate:
        return _side_by_side([_through(branch, values, walk, unit) for branch in cast(layers.Concatenate, module)])
    if rule_of(module) is None:  # a user's own, as torch.fx sees it
        through = partial(_through, walk=walk, unit=unit)
        return walk.graph(module).fold(values, through, partial(_added, unit=unit), _side_by_side)
    # exactly this type: a subclass may compute something else
    return RULES.get(kind, _measured(UNKNOWN))(module, walk, unit)(values)


def _side_by_side(parts: Sequence[Values]) -> Values:
    return Values(_total([part.norm for part in parts]), _total([part.error for part in parts]))


def _block_diagonal(parts: Sequence[nn.Module], values: Values, walk: Walk, unit: float) -> Values:
    """Each part sees a piece of the values. What it makes of their norm N and error E is linear in both, N' = B N + z
    and E' = a E + b N + c, so (Minkowski) the largest factor counts for all of them, and the constants of each.
    """
    nothing, one = Affine(0.0, 0.0), Affine(1.0, 0.0)
    of_norm = [_through(part, Values(one, nothing), walk, unit) for part in parts]
    of_error = [_through(part, Values(nothing, one), walk, unit).error.slope for part in parts]
    at_zero = [Affine(0.0, math.hypot(*(getattr(v, of).offset for v in of_norm))) for of in ("norm", "error")]
    return Values(
        values.norm * max(v.norm.slope for v in of_norm) + at_zero[0],
        values.error * max(of_error) + values.norm * max(v.error.slope for v in of_norm) + at_zero[1],
    )


def _added(parts: Sequence[Values], unit: float) -> Values:
    """A sum or a difference, rounded once."""
    first, second = parts
    added = (first.computed + second.computed) * (2 * unit)
    return Values(first.norm + second.norm, first.error + second.error + added)


def _total(parts: list[Affine]) -> Affine:
    return Affine(math.hypot(*(p.slope for p in parts)), math.hypot(*(p.offset for p in parts)))


def _joined(block: "layers.ConvexResidual | layers.Sum", values: Values, walk: Walk, unit: float) -> Values:
    """alpha * branch + (1 - alpha) * sigma * skip: the two paths' errors, blended, and that of blending them."""
    branch, skip = _through(block.branch, values, walk, unit), _through(block.skip, values, walk, unit)
    sigma = alpha = beta = 1.0
    if isinstance(block, layers.ConvexResidual):
        sigma, alpha = abs(float(block.sigma)), float(block.alpha.detach().double())
        beta = (1 - alpha) * sigma
    # alpha is a function of one number, and the blend takes a handful of operations on the two paths
    added = (branch.computed + skip.computed * sigma) * (2 * FUNCTION * unit)
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
    bias = layer.scaled_bias() if isinstance(layer, layers.ScaledLayer) else layer.bias
    return 0.0 if bias is None else float(bias.detach().double().norm())


def _linear(layer: Any, walk: Walk, unit: float) -> Layer:
    shape = walk.shape(layer)
    times = math.inf if shape is None else math.sqrt(math.prod(shape[:-1]))  # a bias acts on every row of an input
    error, bias = gamma(layer.in_features + 2, unit), _bias(layer) * times if _bias(layer) else 0.0
    return Layer(walk(layer), bias, error * matrix_norm(layer.weight.detach().abs()), error * bias)


def _conv(layer: Any, walk: Walk, unit: float) -> Layer:
    """|K| has its largest response at frequency zero, so its norm is that of the sum of its taps."""
    where = ortho_geometry(layer, walk) if isinstance(layer, layers.OrthoConv2d) else geometry(layer, walk)
    weight = layer.weight  # read once: a peer's parametrization moves it each time
    largest = _absolute_norm(weight, where)
    outputs = math.inf if where.size is None else math.prod(map(where.outputs, (0, 1), where.size))
    bias, error = _bias(layer) * math.sqrt(outputs), gamma(weight[0].numel() + 2, unit)
    return Layer(walk(layer), bias, error * (largest * where.padding_factor()), error * bias)


def _potential(layer: Any, walk: Walk, unit: float) -> Layer:
    """y = sigma x - 2 / sigma W^T relu(W x + b): two products, each off by gamma of its magnitudes, and their sum."""
    sigma, size = float(layer.sigma), absolute_sum(layer.weight)  # ||W|| <= || |W| ||
    bias, error = _bias_on_pixels(layer, walk), 4 * gamma(layer.weight[0].numel() + 2, unit)
    twice = 2 / sigma * size
    rate = error * twice * size + 4 * unit * sigma
    return Layer(walk(layer), twice * bias if bias else 0.0, rate, error * twice * bias if bias else 0.0)


def _exponential(layer: Any, walk: Walk, unit: float) -> Layer:
    """Three products in a row, and the sums between them: of the magnitudes sigma e^|S| |x|."""
    sigma, bias = float(layer.sigma), _bias_on_pixels(layer, walk)
    error = gamma(3 * layer.weight[0].numel() + 20, unit)
    rate = error * sigma * math.exp(absolute_sum(layer.weight) / sigma)
    return Layer(walk(layer), bias, rate, error * bias if bias else 0.0)


def _circular(layer: Any, walk: Walk, unit: float) -> Layer:
    """Five products of complex numbers: two there, one with the symbols, two back.

    Each sums n products of complex numbers, off by at most sqrt(2) gamma_2n+2 of their magnitudes, and the entries of a
    transform, 1 / sqrt(n) each, are off by some 20 units of their own. The magnitudes: sqrt(h) sqrt(w / 2 + 1) on the
    way there, twice that on the way back, since a frequency stands for its mirror image, and |W_f| between.
    """
    symbols = torch.view_as_complex(layer.weight.detach().double().contiguous())
    (height, width), half = layer.size, symbols.shape[1]
    terms = 3 * (width + 2 * height + half + symbols.shape[-1]) + 120
    size = 2 * height * half * float(torch.linalg.matrix_norm(symbols.abs(), ord=2).max())
    error, bias = gamma(terms, unit), _bias_on_pixels(layer, walk)
    return Layer(walk(layer), bias, error * size, error * bias if bias else 0.0)


def _bias_on_pixels(layer: Any, walk: Walk) -> float:
    """The norm of the bias on all pixels, or rows of features, of an input."""
    bias, shape = layer.scaled_bias(), walk.shape(layer)
    if bias is None or shape is None:
        return 0.0 if bias is None else math.inf
    places = shape[:-1] if layer.weight.ndim == 2 else shape[1:]
    return float(bias.detach().double().norm()) * math.sqrt(math.prod(places))


def _absolute_norm(weight: Tensor, where: Any) -> float:
    """|| |K| || of a convolution with this stride, dilation and groups, on every grid."""
    kernels = dilated(weight.detach().double().abs(), where.dilation).chunk(where.groups)
    return max(matrix_norm(split_phases(kernel, where.stride).sum((2, 3))) for kernel in kernels)


def _transposed(layer: Any, walk: Walk, unit: float) -> Layer:
    """As many terms an output as inputs and taps can reach it; |K^T| is as large as |K|."""
    weight, shape = layer.weight, walk.shape(layer)
    largest = _absolute_norm(weight, layer)
    outputs = math.inf
    if shape is not None:
        sizes = (shape[1:], layer.stride, layer.padding, layer.dilation, layer.kernel_size, layer.output_padding)
        axes = zip(*sizes, strict=True)
        outputs = math.prod((n - 1) * s - 2 * p + d * (k - 1) + extra + 1 for n, s, p, d, k, extra in axes)
    terms = weight.numel() // (weight.shape[1] * layer.groups)
    bias, error = _bias(layer) * math.sqrt(outputs) if _bias(layer) else 0.0, gamma(terms + 2, unit)
    return Layer(walk(layer), bias, error * largest, error * bias)


def _elementwise(layer: Elementwise, walk: Walk, unit: float) -> Layer:
    """A product and a sum, with constants that are rounded themselves."""
    shape = walk.shape(layer)
    size = math.inf if shape is None else float(layer.shift.broadcast_to((1, *shape)).norm())
    size = size if bool(layer.shift.any()) else 0.0
    return Layer(walk(layer), size, FUNCTION * unit * walk(layer), FUNCTION * unit * size)


def _shift(layer: layers.Shift, walk: Walk, unit: float) -> Layer:
    size = float(layer.shift.double().norm()) * _pixels(layer, walk)
    return Layer(1.0, size, unit, unit * size)


def _centering(layer: layers.BatchCentering, walk: Walk, unit: float) -> Layer:
    parts = layer.scale.double() * torch.stack((layer.bias.detach(), layer.known_mean())).double()
    size = float(parts.norm(dim=1).sum()) * _pixels(layer, walk)
    return Layer(1.0, size, unit, 4 * unit * size)


def _standardise(layer: layers.Standardise, walk: Walk, unit: float) -> Layer:
    size = float((layer.mean.double() / layer.std.double()).norm()) * _pixels(layer, walk)
    return Layer(walk(layer), size, 3 * unit * walk(layer), 3 * unit * size)


def _pool(terms: int) -> Rule:
    """A mean or a norm over pixels, and so many operations on top."""

    def rule(layer: nn.Module, walk: Walk, unit: float) -> Layer:
        return Layer(walk(layer), rate=gamma(_pixels(layer, walk) ** 2 + terms, unit) * max(1.0, walk(layer)))

    return rule


def _batch_norm(layer: Any, walk: Walk, unit: float) -> Layer:
    shift = float((batch_norm_gains(layer) * layer.running_mean.double()).norm())
    size = (shift + _bias(layer)) * _pixels(layer, walk)
    return Layer(walk(layer), size, FUNCTION * unit * walk(layer), FUNCTION * unit * size)


def _measured(ulps: float) -> Rule:
    """A module whose outputs are off by so many units in the last place; m(0) is measured."""

    def rule(layer: nn.Module, walk: Walk, unit: float) -> Layer:
        lipschitz, size = walk(layer), _at_zero(layer, walk)
        return Layer(lipschitz, size, ulps * unit * lipschitz, ulps * unit * size)

    return rule


def _at_zero(layer: nn.Module, walk: Walk) -> float:
    shape = walk.shape(layer)
    if shape is None:
        return math.inf
    like = next((t for t in [*layer.parameters(), *layer.buffers()] if t.is_floating_point()), torch.zeros(()))
    with torch.no_grad():
        return float(layer(like.new_zeros(1, *shape)).double().norm()) * (1 + 1e-3)


EXACT = (
    *(layers.GroupSort2, layers.HalfAbs, layers.PadToMultiple, layers.Patches, nn.ReLU, nn.MaxPool2d, nn.Dropout),
    *(layers.ShiftChannels, layers.BatchLast, layers.Even),
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
    *(nn.ZeroPad2d, nn.CircularPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d),
)
FUNCTIONS = (layers.Scale, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh)
RULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys((nn.Linear, layers.OrthoLinear), _linear),
    **dict.fromkeys((nn.Conv2d, layers.OrthoConv2d), _conv),
    **dict.fromkeys((layers.Potential, layers.PlainPotential), _potential),
    **dict.fromkeys((layers.Exponential, layers.PlainExponential), _exponential),
    **dict.fromkeys((layers.CircularConv2d, layers.PlainCircular), _circular),
    **dict.fromkeys((nn.ConvTranspose2d, layers.OrthoConvTranspose2d), _transposed),
    layers.BatchCentering: _centering,
    layers.Shift: _shift,
    Elementwise: _elementwise,
    layers.Standardise: _standardise,
    layers.L2NormPool2d: _pool(3),
    layers.EvenOddPatches: lambda layer, walk, unit: Layer(walk(layer), rate=FUNCTION * unit),  # rotations, too
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _batch_norm),
    **dict.fromkeys((nn.AvgPool2d, nn.AdaptiveAvgPool2d), _pool(2)),
    **dict.fromkeys(EXACT, lambda layer, walk, unit: Layer(walk(layer))),
    **dict.fromkeys(FUNCTIONS, _measured(FUNCTION)),
}
