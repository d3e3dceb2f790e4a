"""Rules for torch's own modules, in evaluation."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lipscale.bounds.norms import conv_norm, matrix_norm
from lipscale.bounds.shapes import on_images
from lipscale.bounds.walk import Walk, register_rule
from lipscale.errors import UserError


def conv1d_bound(layer: nn.Conv1d, bound: Walk) -> float:
    """A 1-d convolution is a 2-d one on a single row."""
    return conv_norm(layer.weight.unsqueeze(2), groups=layer.groups, **geometry(layer, bound))


def conv2d_bound(layer: nn.Conv2d, bound: Walk) -> float:
    """Any 2-d convolution: stride, dilation, groups and every padding mode with its true factor."""
    return conv_norm(layer.weight, groups=layer.groups, **geometry(layer, bound))


def geometry(layer: Any, bound: Walk) -> dict[str, Any]:
    """Stride, dilation, padding and input size of a convolution, as of a 2-d one."""
    shape, pads = bound.shape(layer), _pads(layer)
    flat = len(pads) == 1
    if shape is not None and len(shape) != len(pads) + 1:
        raise UserError(f"{type(layer).__name__}: expected an input_shape with channels and sizes, got {shape}")
    return {
        "stride": (1, *layer.stride) if flat else layer.stride,
        "dilation": (1, *layer.dilation) if flat else layer.dilation,
        "padding": ((0, 0), pads[0]) if flat else tuple(pads),
        "padding_mode": layer.padding_mode,
        "size": shape and ((1, shape[1]) if flat else shape[1:]),
    }


def _pads(layer: Any) -> list[tuple[int, int]]:
    """(before, after) for each axis, whether the padding was given as numbers or as "same"."""
    flat = layer._reversed_padding_repeated_twice  # the last axis first, as F.pad wants it
    return [(flat[i], flat[i + 1]) for i in range(len(flat) - 2, -1, -2)]


def batch_norm_bound(layer: Any, bound: Walk) -> float:
    """x -> gamma (x - mean) / sqrt(var + eps): the largest |gamma| / sqrt(var + eps)."""
    if layer.running_var is None:
        raise UserError("BatchNorm without running statistics mixes samples even in evaluation: no bound")
    gain = 1 / (layer.running_var.double() + layer.eps).sqrt()
    if layer.weight is not None:
        gain = gain * layer.weight.detach().double().abs()
    return float(gain.max())


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


def as_pair(value: Any) -> tuple[int, int]:
    """A setting of a 2-d layer, which torch takes as one number or as two."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    return (values[0], values[-1])


def flatten_bound(layer: nn.Flatten, bound: Walk) -> float:
    """Flattening moves nothing, as long as it leaves the batch alone."""
    if layer.start_dim < 1:
        raise UserError(f"Flatten({layer.start_dim}) may join samples: flatten from dimension 1 on")
    return 1.0


def unflatten_bound(layer: nn.Unflatten, bound: Walk) -> float:
    """The reverse, with the same condition."""
    if not isinstance(layer.dim, int) or layer.dim < 1:
        raise UserError(f"Unflatten({layer.dim!r}, ...) may split samples: unflatten dimension 1 or later")
    return 1.0


def pad_bound(mode: str) -> Any:
    """Padding copies pixels: the norm of a 1x1 identity convolution behind it."""

    def rule(layer: Any, bound: Walk) -> float:
        left, right, top, bottom = layer.padding
        if min(layer.padding) < 0:
            raise UserError(f"{type(layer).__name__} with negative padding has no rule")
        shape = bound.shape(layer)
        one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
        return conv_norm(one, padding=((top, bottom), (left, right)), padding_mode=mode, size=shape and shape[1:])

    return rule


register_rule(nn.Linear, lambda layer, bound: matrix_norm(layer.weight))
register_rule(nn.Conv1d, conv1d_bound)
register_rule(nn.Conv2d, conv2d_bound)
for norm in (nn.BatchNorm1d, nn.BatchNorm2d):
    register_rule(norm, batch_norm_bound)
register_rule(nn.MaxPool2d, on_images(max_pool_bound))
register_rule(nn.AvgPool2d, on_images(average_pool_bound))
register_rule(nn.AdaptiveAvgPool2d, on_images(adaptive_average_bound))
register_rule(nn.CircularPad2d, on_images(pad_bound("circular")))
register_rule(nn.ReflectionPad2d, on_images(pad_bound("reflect")))
register_rule(nn.ReplicationPad2d, on_images(pad_bound("replicate")))
register_rule(nn.LeakyReLU, lambda layer, bound: max(abs(layer.negative_slope), 1.0))
register_rule(nn.PReLU, lambda layer, bound: max(float(layer.weight.detach().abs().max()), 1.0))
register_rule(nn.ELU, lambda layer, bound: max(abs(layer.alpha), 1.0))
# the largest slopes, rounded up: at x = sqrt(2), and where the second derivative vanishes
register_rule(nn.GELU, lambda layer, bound: 1.13)
register_rule(nn.SiLU, lambda layer, bound: 1.1)
register_rule(nn.Sigmoid, lambda layer, bound: 0.25)
register_rule(nn.Flatten, flatten_bound)
register_rule(nn.Unflatten, unflatten_bound)
register_rule(nn.Identity, lambda layer, bound: 1.0)
for isometry in (nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.ZeroPad2d):
    register_rule(isometry, on_images(lambda layer, bound: 1.0))
for activation in (nn.ReLU, nn.ReLU6, nn.Tanh, nn.Hardtanh, nn.Softsign, nn.Softshrink, nn.LogSigmoid):
    register_rule(activation, lambda layer, bound: 1.0)
for dropout in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout):
    register_rule(dropout, lambda layer, bound: 1.0)  # the identity in evaluation, and training mode is refused
