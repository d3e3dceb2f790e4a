"""Try to break a certificate: attacks inside the radius and the confidence range, and a search for steep slopes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import jvp, vjp

from lipscale._random import random_stream
from lipscale.attacks import apgd, autoattack, autoattack_installed
from lipscale.certificates.certificate import Certificate
from lipscale.certificates.network import certify
from lipscale.errors import UserError
from lipscale.layers.evaluation import evaluation_mode
from lipscale.losses import margin
from lipscale.models.export import export_plain

INSIDE = 0.9999  # attacks stay just under the radius
BATCH = 256
# slopes are measured in float64, where rounding is far below this
SLOPE_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Audit:
    """What an audit did and found; a certificate that holds has no violations."""

    attacked: int  # certified samples whose class and confidence were attacked
    pairs: int  # pairs of inputs whose slope was measured
    violations: int  # classes changed, confidences out of range, slopes above the bound
    slope: float  # the steepest one found
    bound: float
    tightness: float  # slope / bound


def audit(
    net: nn.Module,
    inputs: Tensor,
    *,
    pairs: int = 10_000,
    steps: int = 50,
    autoattack_samples: int = 0,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Audit:
    """Attack every certified input at just under its radius, and search for slopes above the bound."""
    if len(inputs) < 2:
        raise UserError(f"an audit needs at least 2 inputs, got {len(inputs)}")
    with evaluation_mode(net):
        certificate = certify(net, inputs, even_unconstrained=True)
        attacked = violations = 0
        for i, batch in enumerate(inputs.split(BATCH)):
            generator = random_stream(seed, "audit", i)
            count, broken = _attack(net, certificate, batch, steps=steps, generator=generator)
            attacked, violations = attacked + count, violations + broken
            say(f"attacked {attacked} certified samples: {violations} violations")
        if autoattack_samples and autoattack_installed():
            count, broken = _autoattack(net, certificate, inputs[:autoattack_samples], seed=seed)
            violations += broken
            say(f"AutoAttack on {count} certified samples: {broken} violations")
        exact, measured, slope = export_plain(net).double(), 0, 0.0
        for slopes in _slopes(exact, inputs.double(), pairs, seed=seed):
            measured, slope = measured + len(slopes), max(slope, float(slopes.max()))
            violations += int((slopes > certificate.bound * SLOPE_ROUNDING).sum())
    say(f"measured {measured} slopes: the steepest is {slope:.6g}, the bound {certificate.bound:.6g}")
    bound = certificate.bound  # zero for a constant network, on which there is nothing to find
    return Audit(attacked, measured, violations, slope, bound, slope / bound if bound else 0.0)


def _attack(
    net: nn.Module, certificate: Certificate, inputs: Tensor, *, steps: int, generator: torch.Generator
) -> tuple[int, int]:
    """Attack class and confidence of the certified inputs of a batch; how many there were, and violations."""
    with torch.no_grad():
        logits = net(inputs)
        radius = certificate.radius(logits)
    certified = (radius > 0) & radius.isfinite()
    x, z, radius = inputs[certified], logits[certified], radius[certified] * INSIDE
    if len(x) == 0:
        return 0, 0
    predicted = z.argmax(1)
    lower, upper = certificate.confidence(z, radius)

    def confidence(points: Tensor) -> Tensor:
        return torch.log_softmax(net(points), 1).gather(1, predicted.unsqueeze(1)).squeeze(1)

    objectives = (lambda v: -margin(net(v), predicted), confidence, lambda v: -confidence(v))
    broken = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for objective in objectives:
        points = apgd(objective, x, radius, steps=steps, generator=generator)
        # float32 may round a point out of its ball; what lies outside proves nothing
        inside = (points.double() - x.double()).flatten(1).norm(dim=1) * INSIDE <= radius
        found = net(points).detach()
        p = torch.softmax(found.double(), 1).gather(1, predicted.unsqueeze(1)).squeeze(1)
        broken |= inside & ((found.argmax(1) != predicted) | ~((lower <= p) & (p <= upper)))
    return len(x), int(broken.sum())


def _autoattack(net: nn.Module, certificate: Certificate, inputs: Tensor, *, seed: int) -> tuple[int, int]:
    """AutoAttack has one epsilon for all: the median radius, on the samples certified beyond it."""
    with torch.no_grad():
        logits = net(inputs)
        radius = certificate.radius(logits)
    epsilon = float(radius.median()) * INSIDE
    certified = radius > epsilon
    if not 0 < epsilon < math.inf or not certified.any():
        return 0, 0
    x, predicted = inputs[certified], logits[certified].argmax(1)
    points = autoattack(net, x, predicted, epsilon=epsilon, seed=seed)
    with torch.no_grad():
        return len(x), int((net(points).argmax(1) != predicted).sum())


def _slopes(net: nn.Module, inputs: Tensor, pairs: int, *, seed: int) -> Iterator[Tensor]:
    """||f(x) - f(x')|| / ||x - x'|| for random, climbing and infinitesimal pairs, batch by batch."""
    generator = random_stream(seed, "pairs")
    for start in range(0, pairs, BATCH):
        count = min(BATCH, pairs - start)
        x = inputs[torch.randint(len(inputs), (count,), generator=generator)]
        other = inputs[torch.randint(len(inputs), (count,), generator=generator)]
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x)
        size = 10 ** (-4 * torch.rand(count, generator=generator, dtype=x.dtype).to(x))
        size = size.view(-1, *[1] * (x.ndim - 1))
        # half the pairs join two inputs, half step away from one at random, near and far
        blend = (torch.arange(count) % 2 == 0).view(-1, *[1] * (x.ndim - 1)).to(x.device)
        towards = torch.where(blend, other - x, noise)
        with torch.no_grad():
            yield _slope(net, x, x + size * towards)
    few = inputs[: min(len(inputs), 64)]
    yield _climb(net, few, generator)
    yield _steepest_direction(net, few, generator)


def _slope(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """From below: what float64 may have rounded is taken off the rise and added to the run."""
    distance, size = (x - y).flatten(1).norm(dim=1), x.flatten(1).norm(dim=1) + y.flatten(1).norm(dim=1)
    a, b = net(x), net(y)
    rise = (a - b).norm(dim=1) - 1e-14 * (a.norm(dim=1) + b.norm(dim=1))
    slope = rise.clamp(min=0) / (distance + 1e-14 * size).clamp(min=1e-300)
    return torch.where(distance > 0, slope, torch.zeros_like(slope))  # an input joined with itself says nothing


def _climb(net: nn.Module, inputs: Tensor, generator: torch.Generator, *, steps: int = 50) -> Tensor:
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
        length = (x - y).detach().flatten(1).norm(dim=1).view(-1, *[1] * (x.ndim - 1))
        x, y = (
            p.detach() + 0.1 * length * g / g.flatten(1).norm(dim=1).clamp(min=1e-300).view_as(length)
            for p, g in zip((x, y), gradients, strict=True)
        )
    return best


def _steepest_direction(net: nn.Module, inputs: Tensor, generator: torch.Generator, *, steps: int = 30) -> Tensor:
    """The norm of the Jacobian at each input, from below, by power iteration: fit for an attack, not for a bound."""
    v = torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype).to(inputs)
    shape = (-1, *[1] * (inputs.ndim - 1))
    slope = torch.zeros(len(inputs), dtype=inputs.dtype, device=inputs.device)
    for _ in range(steps):
        v = v / v.flatten(1).norm(dim=1).clamp(min=1e-300).view(shape)
        image = cast(Tensor, jvp(net, (inputs,), (v,))[1])
        slope = torch.maximum(slope, image.norm(dim=1).detach())
        (v,) = vjp(net, inputs)[1](image)
    return slope


def verdict(result: Audit) -> str:
    """The result in words."""
    if result.violations:
        return f"BROKEN: {result.violations} violations. Do not rely on this certificate, and please report it."
    share = f"{100 * result.tightness:.1f} %"
    return f"The certificate held against every attack. The steepest slope found is {share} of the bound."
