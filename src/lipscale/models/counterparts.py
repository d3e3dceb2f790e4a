"""What stands in for each part of an ordinary network, and why for some parts nothing does."""

from collections.abc import Callable
from typing import Any

from torch import nn

from lipscale.bounds.operations import Elementwise
from lipscale.bounds.walk import REASONS
from lipscale.errors import UserError
from lipscale.layers import (
    BatchCentering,
    OrthoConv2d,
    OrthoConvTranspose2d,
    OrthoLinear,
    PadToMultiple,
    Scale,
)
from lipscale.layers.conv import PaddingMode
from lipscale.layers.projectors import as_pair

ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish),
)
WHY_NOT = {
    **REASONS,
    **dict.fromkeys(
        ("LayerNorm", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "RMSNorm"),
        "it divides by a sample's own deviation, which can be next to nothing: take BatchNorm",
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Softmax2d"), "L scales logits: leave it to the loss"),
    **dict.fromkeys(("Sigmoid", "Tanh", "Hardtanh"), "it saturates, so logits would not scale with L: take ReLU"),
}


def _conv(conv: nn.Conv2d) -> list[nn.Module]:
    """The orthogonal convolution; padding that copies pixels becomes zeros, a stride that skips some takes them in."""
    settings: dict[str, Any] = {name: getattr(conv, name) for name in (*SHARED, "padding")}
    stride = conv.stride
    if conv.kernel_size == (1, 1) and stride[0] == stride[1] > 1 and conv.padding in ((0, 0), "valid"):
        return [PadToMultiple(stride[0]), OrthoConv2d(**settings | {"kernel_size": stride}, bias=conv.bias is not None)]
    mode: PaddingMode = "circular" if conv.padding_mode == "circular" and stride == (1, 1) else "zeros"
    return [OrthoConv2d(**settings, bias=conv.bias is not None, padding_mode=mode)]


def _transposed(conv: nn.ConvTranspose2d) -> list[nn.Module]:
    settings: dict[str, Any] = {name: getattr(conv, name) for name in (*SHARED, "padding", "output_padding")}
    return [OrthoConvTranspose2d(**settings, bias=conv.bias is not None)]


def apart(pool: nn.MaxPool2d) -> nn.MaxPool2d:
    """Windows side by side where they overlapped, if they are as many: no pixel counts in several of them."""
    kernel, stride, padding, dilation = map(as_pair, (pool.kernel_size, pool.stride, pool.padding, pool.dilation))
    centred = all(k > s > 1 and 2 * p == k - 1 for k, s, p in zip(kernel, stride, padding, strict=True))
    if centred and dilation == (1, 1) and not pool.ceil_mode:
        return nn.MaxPool2d(stride, ceil_mode=True)
    return pool


def sign_of(module: Elementwise) -> list[nn.Module]:
    """A number in front of values: L, or the weights of a blend, take its place; but not that of its sign."""
    if module.shift.any() or not module.factor.all():
        raise UserError("what is added to values would not scale with L, and zeros leave nothing of them")
    return [] if module.factor > 0 else [Scale(-1.0)]


LAYERS: dict[type[nn.Module], Callable[[Any], list[nn.Module]]] = {
    nn.Conv2d: _conv,
    nn.ConvTranspose2d: _transposed,
    nn.Linear: lambda layer: [OrthoLinear(layer.in_features, layer.out_features, bias=layer.bias is not None)],
    nn.BatchNorm1d: lambda layer: [BatchCentering(layer.num_features)],
    nn.BatchNorm2d: lambda layer: [BatchCentering(layer.num_features)],
}
SHARED = ("in_channels", "out_channels", "kernel_size", "stride", "dilation", "groups")
WIDTHS = ("out_channels", "out_features", "num_features")
