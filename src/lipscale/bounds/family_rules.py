"""Rules for the operators that families of layers bring: blocks, exponentials, symbols. All from the weights in use."""

import math
from typing import Any

import torch

from lipscale import layers
from lipscale.bounds.torch_rules import one
from lipscale.bounds.walk import RULES, Walk, on_images
from lipscale.errors import UserError
from lipscale.layers.norms import ROUNDING, Geometry, adjoint, matrix_norm, norm_of


def potential_bound(layer: Any, bound: Walk) -> float:
    """The eigenvalues of I - 2 M^T D M, with 0 <= D <= I, are between 1 - 2 ||M||^2 and 1; times sigma."""
    sigma = float(layer.sigma)
    norm = potential_norm(layer, bound) / sigma
    return sigma * max(1.0, 2 * norm**2 - 1) * ROUNDING


def potential_norm(layer: Any, bound: Walk) -> float:
    """||W|| of y = sigma x - 2 / sigma W^T relu(W x + b); wrapped around, an odd kernel is circulant at every size."""
    weight = layer.weight
    if weight.ndim == 2:
        return matrix_norm(weight)
    _require_images(layer, bound)
    shape, side = bound.shape(layer), weight.shape[-1]
    pads = (side // 2, side // 2)
    is_plane = layer.padding_mode == "zeros"
    return norm_of(weight, Geometry((side, side), padding=(pads, pads), size=shape and shape[1:] if is_plane else None))


def _require_images(layer: Any, bound: Walk) -> None:
    """With fewer dimensions a convolution takes samples for channels."""
    if any(len(shape) != 3 for shape in bound.shapes(layer)):
        raise UserError(f"{type(layer).__name__} takes images (C, H, W), {bound.listed(layer)}: no bound")


def exponential_bound(layer: Any, bound: Walk) -> float:
    """1 for a skew S of norm at most sqrt(3), and what the part E of S that is not skew can add: ||E|| e^||S||."""
    if layer.weight.ndim == 4:
        _require_images(layer, bound)
    sigma = float(layer.sigma)
    skew, error = absolute_sum(layer.weight) / sigma, absolute_sum(_not_skew(layer.weight)) / sigma
    series = 1.0 if skew <= math.sqrt(3) - error else sum(skew**k / math.factorial(k) for k in range(4))
    return sigma * (series + error * math.exp(skew)) * ROUNDING


def absolute_sum(weight: torch.Tensor) -> float:
    """||sum_t |S_t| ||, a bound for every frequency."""
    weight = weight.detach().double().abs()
    return matrix_norm(weight if weight.ndim == 2 else weight.sum((2, 3)))


def _not_skew(weight: torch.Tensor) -> torch.Tensor:
    weight = weight.detach().double()
    return (weight + (weight.mT if weight.ndim == 2 else adjoint(weight))) / 2


def circular_bound(layer: Any, bound: Walk) -> float:
    """The largest norm of a symbol: the transform is unitary, and taking the real part brings nothing further apart."""
    symbols = torch.view_as_complex(layer.weight.detach().double().contiguous())
    return float(torch.linalg.matrix_norm(symbols, ord=2).max()) * ROUNDING


def sized(layer: Any, bound: Walk) -> float:
    """Without a size there is no transform, and so nothing to measure."""
    if layer.size == (0, 0):
        raise UserError(f"{layer.name} has seen no image yet, so its size is open: give an input_shape")
    return on_images(circular_bound)(layer, bound)


RULES.update(
    {
        **dict.fromkeys((layers.Potential, layers.PlainPotential), potential_bound),
        **dict.fromkeys((layers.Exponential, layers.PlainExponential), exponential_bound),
        layers.CircularConv2d: sized,
        layers.PlainCircular: on_images(circular_bound),
        layers.ShiftChannels: on_images(one),
    }
)
