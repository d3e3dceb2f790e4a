"""Set L and read L: the nominal constant. What a certificate uses is `lipscale.bounds.lipschitz_bound`."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from lipscale import layers
from lipscale.bounds.walk import is_plain_sequence
from lipscale.errors import UserError

# f(c x) = c f(x) for c > 0, or at the input, where no scale has acted yet: a scale passes through unchanged
HOMOGENEOUS = {
    *(layers.GroupSort2, layers.HalfAbs, layers.L2NormPool2d, layers.PadToMultiple, layers.Patches, layers.Standardise),
    *(layers.ShiftChannels, layers.Scale, layers.BatchLast, layers.EvenOddPatches, layers.Even),
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelUnshuffle, nn.PixelShuffle, nn.Dropout, nn.Dropout2d),
    *(nn.ReLU, nn.LeakyReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.ChannelShuffle),
    *(nn.ZeroPad2d, nn.CircularPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d),
}


def is_constrained(net: nn.Module) -> bool:
    """Whether the network has layers that carry a constant; an unconstrained twin has none."""
    return any(isinstance(module, layers.ScaledLayer) for module in net.modules())


@torch.no_grad()
def set_lipschitz(net: nn.Module, constant: float) -> None:
    """Project the network onto the constraint L: sigma = L^(1/D) in each of its D scaled layers (App. E).

    Every logit is multiplied by L' / L; the learned weights are left as they are.

    Args:
        net: a network of torch.nn.Sequential, lipscale.layers and positively homogeneous modules.
        constant: L, in (0, inf).

    Example:
        >>> import lipscale, torch
        >>> net = lipscale.models.mlp(3, 4, 8).eval()
        >>> x = torch.rand(5, 4)
        >>> before = net(x)
        >>> lipscale.set_lipschitz(net, 5.0)
        >>> torch.allclose(net(x), 5 * before, rtol=1e-4)
        True
    """
    if not 0 < constant < float("inf"):
        raise UserError(f"expected a Lipschitz constant in (0, inf), got {constant}")
    _project(net, constant ** (1 / scaled_depth(net)), scale=1.0)


def get_lipschitz(net: nn.Module) -> float:
    """The nominal constant, the product of the sigmas along the path; `lipschitz_bound` is the proven one.

    Args:
        net: a network that `set_lipschitz` takes.

    Returns:
        L.

    Example:
        >>> import lipscale
        >>> net = lipscale.models.mlp(3, 4, 8)
        >>> lipscale.set_lipschitz(net, 5.0)
        >>> round(lipscale.get_lipschitz(net), 4)
        5.0
    """
    scaled_depth(net)
    return float(_along(net, lambda layer: float(layer.sigma), math.prod))


def scaled_depth(net: nn.Module) -> int:
    """D, the number of scaled layers along one path (18 in the paper's ResNet-18); skips do not count."""
    scaled = [m for m in net.modules() if isinstance(m, layers.AtScale)]
    if len(scaled) != sum(isinstance(m, layers.AtScale) for _, m in net.named_modules(remove_duplicate=False)):
        raise UserError(f"{type(net).__name__} runs one scaled layer in several places, which need sigmas of their own")
    seen = False
    for module in net.modules():  # in the order in which a sequence runs
        seen = seen or isinstance(module, layers.ScaledLayer)
        if seen and isinstance(module, layers.Standardise):  # a shift by a fixed mean does not scale with L
            raise UserError("Standardise works on the input: put it before every layer that carries a scale")
    depth = int(_along(net, lambda layer: 1, sum))
    if depth == 0:
        raise UserError(f"{type(net).__name__} has no scaled layer (OrthoConv2d, OrthoLinear) to carry a constant")
    return depth


def _along(module: nn.Module, value: Callable[[Any], float], join: Callable[[Iterable[float]], float]) -> float:
    """The values of the scaled layers along one path, joined as the modules are nested."""
    if isinstance(module, layers.ScaledLayer):
        return value(module)
    if isinstance(module, layers.ConvexResidual):
        return _along(module.branch, value, join)
    if isinstance(module, layers.EvenOddMap):
        even, odd = (_along(part, value, join) for part in (module.even, module.odd))
        if even != odd:
            raise UserError(f"the even and the odd map disagree: {even:g} and {odd:g} scaled layers, or their product")
        return even
    return join(_along(child, value, join) for child in _chain(module))


def _project(module: nn.Module, sigma: float, *, scale: float) -> float:
    """Give each module its sigma and the scale that it works at; return the scale behind the module."""
    if isinstance(module, layers.ScaledLayer):
        scale *= sigma
        module.sigma.fill_(sigma)
    if isinstance(module, layers.AtScale):
        module.scale.fill_(scale)
    elif isinstance(module, layers.ConvexResidual):
        behind = _project(module.branch, sigma, scale=scale)
        _project(module.skip, 1.0, scale=scale)  # the skip's sigma sits in the residual itself
        module.sigma.fill_(behind / scale)
        return behind
    elif isinstance(module, layers.EvenOddMap):
        _project(module.odd, sigma, scale=scale)
        return _project(module.even, sigma, scale=scale)
    else:
        for child in _chain(module):
            scale = _project(child, sigma, scale=scale)
    return scale


def _chain(module: nn.Module) -> Sequence[nn.Module]:
    """The modules that run one after the other inside this one."""
    if isinstance(module, nn.Sequential) and is_plain_sequence(module):
        return list(module)
    if isinstance(module, layers.MirrorAverage | layers.EvenOdd):
        return [module.net]
    if isinstance(module, layers.EvenOddActivation):
        return [module.activation]
    if isinstance(module, layers.AtScale):
        return []  # its bias or mean is scaled along
    hidden = [name for name, m in module.named_modules() if m is not module and isinstance(m, layers.AtScale)]
    if hidden:
        raise UserError(
            f"cannot see in which order {type(module).__name__} runs its scaled layers ({hidden[0]}, ...): "
            "build it from torch.nn.Sequential and lipscale.layers.ConvexResidual, or by lipscale.lipschitzify"
        )
    if type(module) not in HOMOGENEOUS:
        raise UserError(
            f"{type(module).__name__} is not known to be positively homogeneous, so logits would not scale with L "
            f"(known: {', '.join(sorted(kind.__name__ for kind in HOMOGENEOUS))})"
        )
    return []
