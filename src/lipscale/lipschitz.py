"""Set L, read L, and bound the true Lipschitz constant from the weights as they are."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from lipscale.errors import UserError
from lipscale.layers import (
    AtScale,
    BatchCentering,
    ConvexResidual,
    GroupSort2,
    L2NormPool2d,
    OrthoConv2d,
    OrthoLinear,
    PadToMultiple,
    ScaledLayer,
    Standardise,
)
from lipscale.norms import conv_norm, matrix_norm


@torch.no_grad()
def set_lipschitz(net: nn.Module, constant: float) -> None:
    """Project the network onto the constraint L: sigma = L^(1/D) in each of its D scaled layers (App. E).

    Every logit is multiplied by L' / L; the learned weights are left as they are.
    """
    if not 0 < constant < float("inf"):
        raise UserError(f"expected a Lipschitz constant in (0, inf), got {constant}")
    _project(net, constant ** (1 / scaled_depth(net)), gain=1.0)


def get_lipschitz(net: nn.Module) -> float:
    """The nominal constant, the product of the scales along the path; `lipschitz_bound` is the proven one."""
    scaled_depth(net)
    return _nominal(net)


def scaled_depth(net: nn.Module) -> int:
    """D, the number of scaled layers along one path (18 in the paper's ResNet-18); skips do not count."""
    depth = _depth(net)
    if depth == 0:
        raise UserError(f"{type(net).__name__} has no scaled layer (OrthoConv2d, OrthoLinear) to carry a constant")
    return depth


def _depth(module: nn.Module) -> int:
    if isinstance(module, ScaledLayer):
        return 1
    if isinstance(module, ConvexResidual):
        return _depth(module.branch)
    return sum(_depth(child) for child in _chain(module))


def _nominal(module: nn.Module) -> float:
    if isinstance(module, ScaledLayer):
        return float(module.sigma)
    if isinstance(module, ConvexResidual):
        return _nominal(module.branch)
    product = 1.0
    for child in _chain(module):
        product *= _nominal(child)
    return product


def _project(module: nn.Module, sigma: float, *, gain: float) -> float:
    """Give each module its scale and the gain it works at; return the gain behind the module."""
    if isinstance(module, ScaledLayer):
        gain *= sigma
        module.sigma.fill_(sigma)
    if isinstance(module, AtScale):
        module.gain.fill_(gain)
    elif isinstance(module, ConvexResidual):
        behind = _project(module.branch, sigma, gain=gain)
        _project(module.skip, 1.0, gain=gain)  # the skip's scale sits in the residual itself
        module.scale.fill_(behind / gain)
        return behind
    else:
        for child in _chain(module):
            gain = _project(child, sigma, gain=gain)
    return gain


def _chain(module: nn.Module) -> Sequence[nn.Module]:
    """The modules that run one after the other inside this one."""
    if _runs_in_sequence(module):
        return list(module.children())
    hidden = [name for name, m in module.named_modules() if m is not module and isinstance(m, AtScale)]
    if hidden:
        raise UserError(
            f"cannot see in which order {type(module).__name__} runs its scaled layers ({hidden[0]}, ...): "
            "build it from torch.nn.Sequential and lipscale.layers.ConvexResidual"
        )
    return []


def _runs_in_sequence(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def lipschitz_bound(net: nn.Module, input_shape: Sequence[int] | None = None) -> float:
    """A proven upper bound on ||f(x) - f(x')|| / ||x - x'||, composed in float64 from the weights in use.

    It holds for every input size, so `input_shape` is not needed. A module without a rule is an error.
    """
    if net.training:
        raise UserError("a bound holds for evaluation weights: call net.eval() first")
    return _bound(net)


def _bound(module: nn.Module) -> float:
    if _runs_in_sequence(module):
        product = 1.0
        for child in module.children():
            product *= _bound(child)
        return product
    # the exact type: a subclass may compute something else under a trusted name
    rule = RULES.get(type(module))
    if rule is None:
        known = ", ".join(sorted(kind.__name__ for kind in RULES))
        raise UserError(f"no Lipschitz rule for {type(module).__name__}; known modules: Sequential, {known}")
    bound = rule(module)
    if not 0 <= bound < float("inf"):
        raise UserError(f"{type(module).__name__} has no finite bound ({bound}): are its weights finite?")
    return bound


def _residual_bound(block: ConvexResidual) -> float:
    """Bound of the blend: alpha B(branch) + (1 - alpha) scale B(skip)."""
    alpha = float(block.alpha.detach())
    return alpha * _bound(block.branch) + (1 - alpha) * abs(float(block.scale)) * _bound(block.skip)


def _one(module: nn.Module) -> float:
    return 1.0


RULES: dict[type[nn.Module], Callable[[Any], float]] = {
    OrthoLinear: lambda layer: matrix_norm(layer.weight),
    OrthoConv2d: lambda layer: conv_norm(layer.weight, stride=layer.stride),
    ConvexResidual: _residual_bound,
    Standardise: lambda layer: 1 / float(layer.std.double().abs().min()),
    BatchCentering: _one,
    GroupSort2: _one,
    L2NormPool2d: _one,
    PadToMultiple: _one,
    nn.Flatten: _one,
    nn.Identity: _one,
    nn.PixelUnshuffle: _one,
}
