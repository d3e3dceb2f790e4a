"""Search for steep slopes: what a Lipschitz bound must not be exceeded by."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import jvp, vjp

from lipscale._random import random_stream
from lipscale.attacks.ball import norms

BATCH = 256


def slopes(net: nn.Module, inputs: Tensor, pairs: int, *, seed: int) -> Iterator[Tensor]:
    """||f(x) - f(x')|| / ||x - x'|| for climbing, infinitesimal and random pairs, batch by batch."""
    generator = random_stream(seed, "pairs")
    few = inputs[: min(len(inputs), 64)]
    yield climb(net, few, generator)  # the sharpest tools first: there may not be time for all
    yield steepest_direction(net, few, generator)
    for start in range(0, pairs, BATCH):
        count = min(BATCH, pairs - start)
        x = inputs[torch.randint(len(inputs), (count,), generator=generator)]
        other = inputs[torch.randint(len(inputs), (count,), generator=generator)]
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x)
        size = 10 ** (-4 * torch.rand(count, generator=generator, dtype=x.dtype).to(x))
        noise[::2] = (other - x)[::2]  # half the pairs join two inputs, half step away from one at random, near and far
        with torch.no_grad():
            yield _slope(net, x, x + size.view(-1, *[1] * (x.ndim - 1)) * noise)


def _slope(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """From below: what float64 may have rounded is taken off the rise and added to the run."""
    distance, size = (x - y).flatten(1).norm(dim=1), x.flatten(1).norm(dim=1) + y.flatten(1).norm(dim=1)
    a, b = net(x), net(y)
    rise = (a - b).norm(dim=1) - 1e-14 * (a.norm(dim=1) + b.norm(dim=1))
    slope = rise.clamp(min=0) / (distance + 1e-14 * size).clamp(min=1e-300)
    return torch.where(distance > 0, slope, torch.zeros_like(slope))  # an input joined with itself says nothing


def climb(net: nn.Module, inputs: Tensor, generator: torch.Generator, *, steps: int = 50) -> Tensor:
    """Gradient ascent on the slope, moving both ends of each pair."""
    x = inputs.clone()
    y = x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x)
    best = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    for _ in range(steps):
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        with torch.enable_grad():
            slope = _slope(net, x, y)
            gradients = torch.autograd.grad(slope.clamp(min=1e-300).log().sum(), (x, y))
        best = torch.maximum(best, slope.detach())
        step = 0.1 * norms((x - y).detach())
        x, y = (p.detach() + step * g / norms(g) for p, g in zip((x, y), gradients, strict=True))
    return best


def steepest_direction(net: nn.Module, inputs: Tensor, generator: torch.Generator, *, steps: int = 30) -> Tensor:
    """The norm of the Jacobian at each input, from below, by power iteration: fit for an attack, not for a bound."""
    v = torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype).to(inputs)
    slope = torch.zeros(len(inputs), dtype=inputs.dtype, device=inputs.device)
    for _ in range(steps):
        v = v / norms(v)
        image = cast(Tensor, jvp(net, (inputs,), (v,))[1])
        slope = torch.maximum(slope, image.norm(dim=1).detach())
        (v,) = vjp(net, inputs)[1](image)
    return slope
