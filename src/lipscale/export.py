"""The plain network: ordinary torch layers that compute what the constrained network computes in evaluation."""

import copy

import torch
from torch import Tensor, nn

from lipscale.bounds import require_certifiable
from lipscale.layers import BatchCentering, Concatenate, ConvexResidual, OrthoConv2d, OrthoLinear, Shift, Sum


@torch.no_grad()
def export_plain(net: nn.Module) -> nn.Module:
    """The same function and the same bound without parametrizations: Conv2d and Linear with the weights in use.

    The scale and the centering are folded into weights and biases. `torch.export` and `torch.compile` take the result.
    """
    require_certifiable(net)
    return _plain(net).eval()


def _plain(module: nn.Module) -> nn.Module:
    if isinstance(module, OrthoConv2d):
        conv = nn.Conv2d(
            module.in_channels, module.out_channels, module.kernel_size, module.stride, module.padding, bias=True
        )
        return _filled(conv, module.weight, module.scaled_bias())
    if isinstance(module, OrthoLinear):
        linear = nn.Linear(module.in_features, module.out_features)
        return _filled(linear, module.weight, module.scaled_bias())
    if isinstance(module, BatchCentering):
        return Shift((module.gain * (module.bias - module.mean)).detach().clone())
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        return _sequence(module)
    if isinstance(module, ConvexResidual | Sum | Concatenate):
        twin = copy.copy(module)
        twin._modules = {name: _plain(child) for name, child in module._modules.items() if child is not None}
        twin._parameters = {k: nn.Parameter(p.detach().clone()) for k, p in module._parameters.items() if p is not None}
        twin._buffers = {k: b.clone() for k, b in module._buffers.items() if b is not None}
        return twin
    return copy.deepcopy(module)


def _sequence(net: nn.Sequential) -> nn.Sequential:
    """The chain with every shift folded into the affine layer before it."""
    plain: dict[str, nn.Module] = {}
    last: nn.Module | None = None
    for name, module in net._modules.items():
        assert module is not None
        made = _plain(module)
        if isinstance(made, Shift) and isinstance(last, nn.Conv2d | nn.Linear) and last.bias is not None:
            last.bias.add_(made.shift)
            continue
        plain[name] = last = made
    sequence = nn.Sequential()
    for name, made in plain.items():
        sequence.add_module(name, made)
    return sequence


def _filled(layer: nn.Conv2d | nn.Linear, weight: Tensor, bias: Tensor | None) -> nn.Module:
    layer.to(device=weight.device, dtype=weight.dtype)
    layer.weight.copy_(weight)
    assert layer.bias is not None
    layer.bias.zero_() if bias is None else layer.bias.copy_(bias)
    return layer
