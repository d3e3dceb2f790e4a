"""The plain network: ordinary torch layers that compute what the constrained network computes in evaluation."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipscale.bounds import is_plain_sequence, require_faithful
from lipscale.errors import UserError
from lipscale.layers import (
    BatchCentering,
    BatchLast,
    CircularConv2d,
    Concatenate,
    ConvexResidual,
    EvenOdd,
    EvenOddActivation,
    EvenOddMap,
    Exponential,
    MirrorAverage,
    OrthoConv2d,
    OrthoConvTranspose2d,
    OrthoLinear,
    PlainCircular,
    PlainExponential,
    PlainPotential,
    Potential,
    ScaledLayer,
    Shift,
    Sum,
)
from lipscale.layers.evaluation import drop_caches

CONTAINERS = (ConvexResidual, Sum, Concatenate, MirrorAverage, EvenOdd, EvenOddMap, EvenOddActivation)
OPERATORS: dict[Any, Any] = {
    CircularConv2d: PlainCircular,
    Exponential: PlainExponential,
    Potential: PlainPotential,
}


@torch.no_grad()
def export_plain(net: nn.Module) -> nn.Module:
    """The same function and the same bound without parametrizations: Conv2d and Linear with the weights in use.

    The scale and the centering are folded into weights and biases. `torch.export` and `torch.compile` take the result.

    Args:
        net: a network in evaluation mode, of torch.nn.Sequential and lipscale.layers. It is left as it is.

    Returns:
        A network in evaluation mode that shares nothing with `net`.

    Example:
        >>> import lipscale
        >>> net = lipscale.models.mlp(3, 4, 8, depth=1).eval()
        >>> lipscale.export_plain(net).head
        Linear(in_features=8, out_features=3, bias=True)
    """
    require_faithful(net)
    drop_caches(net)
    return plain_copy(net).eval()


def plain_copy(module: nn.Module) -> nn.Module:
    """The plain twin of a module, with the weights that it works with now."""
    kind: Any = parametrize.type_before_parametrizations(module)
    if isinstance(module, OrthoConv2d) and kind is OrthoConv2d:  # a subclass may compute something else
        conv = nn.Conv2d(
            module.in_channels,
            module.out_channels,
            module.kernel_size,
            module.stride,
            module.padding,
            module.dilation,
            module.groups,
            padding_mode=module.padding_mode,
        )
        return _filled(conv, module.weight, module.scaled_bias())
    if isinstance(module, OrthoConvTranspose2d) and kind is OrthoConvTranspose2d:
        shape = (module.kernel_size, module.stride, module.padding, module.output_padding, module.groups)
        transposed = nn.ConvTranspose2d(module.in_channels, module.out_channels, *shape, dilation=module.dilation)
        return _filled(transposed, module.weight, module.scaled_bias())
    if isinstance(module, OrthoLinear) and kind is OrthoLinear:
        linear = nn.Linear(module.in_features, module.out_features)
        return _filled(linear, module.weight, module.scaled_bias())
    if kind in OPERATORS:
        return OPERATORS[kind](module)
    if isinstance(module, BatchCentering) and kind is BatchCentering:
        return Shift((module.scale * (module.bias - module.known_mean())).detach().clone())
    if kind is BatchLast:  # ordinary convolutions have no use for it
        return nn.Identity()
    if isinstance(module, nn.Sequential) and is_plain_sequence(module):
        return _sequence(module)
    if kind in CONTAINERS:
        twin = copy.copy(module)
        twin._modules = {name: plain_copy(child) for name, child in module._modules.items() if child is not None}
        twin._parameters = {k: nn.Parameter(p.detach().clone()) for k, p in module._parameters.items() if p is not None}
        twin._buffers = {k: b.clone() for k, b in module._buffers.items() if b is not None}
        return twin
    if isinstance(module, nn.Linear) and kind.forward is nn.Linear.forward:  # a peer's, parametrized
        return _filled(nn.Linear(module.in_features, module.out_features), module.weight, module.bias)
    if any(isinstance(m, ScaledLayer) or parametrize.is_parametrized(m) for m in module.modules()):
        raise UserError(f"cannot export {kind.__name__}: build it from torch.nn.Sequential and lipscale.layers")
    return copy.deepcopy(module)


def _sequence(net: nn.Sequential) -> nn.Sequential:
    """The chain with every shift folded into the affine layer before it."""
    plain: dict[str, nn.Module] = {}
    last: nn.Module | None = None
    for name, module in net._modules.items():
        assert module is not None
        made = plain_copy(module)
        # a convolution's bias acts on dimension 1, as a shift does; a linear layer's may not
        if isinstance(made, Shift) and type(last) is nn.Conv2d and last.bias is not None:
            last.bias.add_(made.shift)
            continue
        plain[name] = last = made
    sequence = nn.Sequential()
    for name, made in plain.items():
        sequence.add_module(name, made)
    return sequence


def _filled(layer: nn.Conv2d | nn.ConvTranspose2d | nn.Linear, weight: Tensor, bias: Tensor | None) -> nn.Module:
    layer.to(device=weight.device, dtype=weight.dtype)
    layer.weight.copy_(weight)
    assert layer.bias is not None
    layer.bias.zero_() if bias is None else layer.bias.copy_(bias)
    return layer
