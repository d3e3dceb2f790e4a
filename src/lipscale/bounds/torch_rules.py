"""Rules for torch's own modules, in evaluation."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipscale.bounds.walk import RULES, Rule, Walk, on_images
from lipscale.errors import UserError
from lipscale.layers.norms import Geometry, conv_norm, matrix_norm, norm_of
from lipscale.layers.projectors import as_pair


def linear_bound(layer: Any, bound: Walk) -> float:
    """Any layer that is its matrix."""
    return matrix_norm(layer.weight)


def conv_bound(layer: Any, bound: Walk) -> float:
    """Any convolution: stride, dilation, groups and every padding mode with its true factor. A 1-d one has one row."""
    weight = layer.weight  # read once: a peer's parametrization moves it each time
    return norm_of(weight if weight.ndim == 4 else weight.unsqueeze(2), geometry(layer, bound))


def transposed_bound(layer: Any, bound: Walk) -> float:
    """The adjoint of a convolution, cropped: its norm on the unbounded grid is at least as large."""
    return conv_norm(layer.weight, stride=layer.stride, dilation=layer.dilation, groups=layer.groups)


def geometry(layer: Any, bound: Walk) -> Geometry:
    """The geometry of a convolution, as of a 2-d one."""
    shape, flat = bound.shape(layer), layer._reversed_padding_repeated_twice  # the last axis first, as F.pad wants it
    pads = [(flat[i], flat[i + 1]) for i in range(len(flat) - 2, -1, -2)]
    if shape is not None and len(shape) != len(pads) + 1:
        raise UserError(f"{type(layer).__name__}: expected an input_shape with channels and sizes, got {shape}")
    row = (1,) * (2 - len(pads))
    kernel, stride, dilation = (row + value for value in (layer.kernel_size, layer.stride, layer.dilation))
    extent = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    padding = tuple([(0, 0), *pads][-2:])
    size = shape and row + shape[1:]
    return Geometry(extent, stride, dilation, layer.groups, padding, layer.padding_mode, size)  # type: ignore[arg-type]


def batch_norm_bound(layer: Any, bound: Walk) -> float:
    """x -> gamma (x - mean) / sqrt(var + eps): the largest |gamma| / sqrt(var + eps)."""
    if layer.running_var is None:
        raise UserError("BatchNorm without running statistics mixes samples even in evaluation: no bound")
    return float(batch_norm_gains(layer).max())


def batch_norm_gains(layer: Any) -> Tensor:
    """|gamma| / sqrt(var + eps) of each channel."""
    gains: Tensor = 1 / (layer.running_var.double() + layer.eps).sqrt()
    return gains if layer.weight is None else gains * layer.weight.detach().double().abs()


def sample_norm_bound(layer: Any, bound: Walk) -> float:
    """x -> gamma (x - mean) / sqrt(var + eps) by a sample's own statistics: max |gamma| / sqrt(eps).

    Its Jacobian is (I - 1 1^T / n - z z^T / n) / sqrt(var + eps), z the normalised x; the bound is reached where a
    sample is constant. With the usual eps of 1e-5 it is 316: sound, and of little use.
    """
    rank = len(getattr(layer, "normalized_shape", ()))
    if any(len(shape) < rank for shape in bound.shapes(layer)):
        raise UserError(f"{type(layer).__name__} over {rank} dimensions would mix samples, {bound.listed(layer)}")
    if getattr(layer, "track_running_stats", False):
        return batch_norm_bound(layer, bound)
    gain = 1.0 if layer.weight is None else float(layer.weight.detach().double().abs().max())
    if not layer.eps:
        raise UserError(f"{type(layer).__name__} without an eps divides by as little as there is: no bound")
    return gain / math.sqrt(layer.eps)


def max_pool_bound(layer: Any, bound: Walk) -> float:
    """A maximum is 1-Lipschitz; a pixel that counts in m windows counts sqrt(m) times."""
    kernel, stride, dilation = (as_pair(v) for v in (layer.kernel_size, layer.stride, layer.dilation))
    windows = (k if d > 1 else math.ceil(k / s) for k, s, d in zip(kernel, stride, dilation, strict=True))
    return math.sqrt(math.prod(windows))


def average_pool_bound(layer: nn.AvgPool2d, bound: Walk) -> float:
    """A convolution with a constant kernel, channel by channel."""
    if layer.ceil_mode or (not layer.count_include_pad and any(as_pair(layer.padding))):
        raise UserError("AvgPool2d with ceil_mode or without count_include_pad divides by less at the border: no rule")
    kernel, stride, padding = (as_pair(v) for v in (layer.kernel_size, layer.stride, layer.padding))
    weight = torch.full((1, 1, *kernel), 1 / (layer.divisor_override or math.prod(kernel)), dtype=torch.float64)
    shape = bound.shape(layer)
    pads = ((padding[0], padding[0]), (padding[1], padding[1]))
    return conv_norm(weight, stride=stride, padding=pads, size=shape and shape[1:])


def adaptive_average_bound(layer: nn.AdaptiveAvgPool2d, bound: Walk) -> float:
    """The mean over windows: the product of the norms along the two axes."""
    outputs, shape = as_pair(layer.output_size), bound.shape(layer)
    if shape is None:
        if outputs != (1, 1):
            raise UserError("AdaptiveAvgPool2d to more than one pixel needs an input_shape: its windows may overlap")
        return 1.0  # the mean of n pixels has norm 1 / sqrt(n)
    norms = []
    for out, size in zip(outputs, shape[1:], strict=True):
        lines = torch.eye(size, dtype=torch.float64).unsqueeze(1)
        norms.append(matrix_norm(F.adaptive_avg_pool1d(lines, out or size).squeeze(1)))
    return math.prod(norms)


def reshape_bound(layer: Any, bound: Walk) -> float:
    """Flattening and unflattening move nothing, as long as they leave the batch alone."""
    dim = layer.start_dim if isinstance(layer, nn.Flatten) else layer.dim
    if not isinstance(dim, int) or dim < 1:
        raise UserError(
            f"{type(layer).__name__}({dim!r}) may join samples, or split samples: take dimension 1 or later"
        )
    return 1.0


def pad_bound(mode: str) -> Rule:
    """Padding copies pixels: the norm of a 1x1 identity convolution behind it."""

    def rule(layer: Any, bound: Walk) -> float:
        left, right, top, bottom = layer.padding
        if min(layer.padding) < 0:
            raise UserError(f"{type(layer).__name__} with negative padding has no rule")
        shape = bound.shape(layer)
        one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
        return conv_norm(one, padding=((top, bottom), (left, right)), padding_mode=mode, size=shape and shape[1:])

    return rule


def one(layer: nn.Module, bound: Walk) -> float:
    """A module that brings no two inputs further apart."""
    return 1.0


TABLE: dict[type[nn.Module], Rule] = {
    nn.Linear: linear_bound,
    nn.Conv1d: conv_bound,
    nn.Conv2d: conv_bound,
    nn.ConvTranspose2d: on_images(transposed_bound),
    nn.BatchNorm1d: batch_norm_bound,
    nn.BatchNorm2d: batch_norm_bound,
    **dict.fromkeys((nn.LayerNorm, nn.GroupNorm, nn.RMSNorm), sample_norm_bound),
    nn.InstanceNorm2d: on_images(sample_norm_bound),
    nn.MaxPool2d: on_images(max_pool_bound),
    nn.AvgPool2d: on_images(average_pool_bound),
    nn.AdaptiveAvgPool2d: on_images(adaptive_average_bound),
    nn.CircularPad2d: on_images(pad_bound("circular")),
    nn.ReflectionPad2d: on_images(pad_bound("reflect")),
    nn.ReplicationPad2d: on_images(pad_bound("replicate")),
    nn.LeakyReLU: lambda layer, bound: max(abs(layer.negative_slope), 1.0),
    nn.PReLU: lambda layer, bound: max(float(layer.weight.detach().abs().max()), 1.0),
    nn.ELU: lambda layer, bound: max(abs(layer.alpha), 1.0),
    # the largest slopes, rounded up: at x = sqrt(2), and where the second derivative vanishes
    nn.GELU: lambda layer, bound: 1.13,
    nn.SiLU: lambda layer, bound: 1.1,
    nn.Sigmoid: lambda layer, bound: 0.25,
    nn.Hardswish: lambda layer, bound: 1.5,
    nn.Flatten: reshape_bound,
    nn.Unflatten: reshape_bound,
    **dict.fromkeys((nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.ZeroPad2d), on_images(one)),
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.Tanh, nn.Hardtanh, nn.Softsign, nn.Softshrink, nn.LogSigmoid), one),
    # the identity in evaluation, and training mode is refused
    **dict.fromkeys((nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout), one),
}
RULES.update(TABLE)
