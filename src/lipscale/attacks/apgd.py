"""Auto-PGD in the l2 norm (Croce and Hein, 2020): a projected gradient ascent that chooses its own steps.

With it, calibration attacks (Obadinma et al., 2024): change how sure a network is, and leave its answer alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lipscale.attacks.ball import Box, direction, norms, project, value_and_gradient
from lipscale.losses import margin

MOMENTUM = 0.75
ENOUGH_PROGRESS = 0.75  # halve the step where fewer than this share of steps since the last checkpoint improved
OUTSIDE = 1e4  # any point that keeps its class is better than any that does not


def apgd(
    objective: Callable[[Tensor], Tensor],
    inputs: Tensor,
    radius: Tensor,
    *,
    steps: int = 50,
    box: Box | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The points found with the largest objective, each within its own radius of its input (and in the box).

    `objective` maps (B, ...) to (B,) and must treat samples one by one; `radius` is (B,).
    """
    shape = (-1, *[1] * (inputs.ndim - 1))
    radius = radius.to(inputs.dtype).view(shape)
    x = project(inputs + direction(inputs, generator) * radius, inputs, radius, box)
    value, gradient = value_and_gradient(objective, x)
    best, best_value, best_gradient = x, value, gradient
    previous, step = x, 2 * radius
    improved = torch.zeros_like(value)
    since, was_halved, value_then = 0, torch.ones_like(value, dtype=torch.bool), best_value
    checkpoints = _checkpoints(steps)
    for k in range(1, steps + 1):
        target = project(x + step * gradient / norms(gradient), inputs, radius, box)
        momentum = MOMENTUM if k > 1 else 1.0
        moved = project(x + momentum * (target - x) + (1 - momentum) * (x - previous), inputs, radius, box)
        previous, x = x, moved
        last_value = value
        value, gradient = value_and_gradient(objective, x)
        improved += value > last_value
        since += 1
        better = value > best_value
        pick = better.view(shape)
        best, best_gradient = torch.where(pick, x, best), torch.where(pick, gradient, best_gradient)
        best_value = torch.where(better, value, best_value)
        if k in checkpoints:
            stuck = improved < ENOUGH_PROGRESS * since
            stuck |= ~was_halved & (best_value <= value_then)
            halve = stuck.view(shape)
            step = torch.where(halve, step / 2, step)
            x, gradient = torch.where(halve, best, x), torch.where(halve, best_gradient, gradient)
            value = torch.where(stuck, best_value, value)
            was_halved, value_then, since = stuck, best_value, 0
            improved = torch.zeros_like(improved)
    return best


def _checkpoints(steps: int) -> set[int]:
    """The steps at which progress is judged: p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06), from 0 and 0.22."""
    fractions = [0.0, 0.22]
    while fractions[-1] < 1:
        fractions.append(fractions[-1] + max(fractions[-1] - fractions[-2] - 0.03, 0.06))
    return {int(-(-p * steps // 1)) for p in fractions[1:]}


class CalibrationAttack(NamedTuple):
    """Points within epsilon of the inputs, all of the class that was predicted for the input."""

    over: Tensor  # as confident as could be found
    under: Tensor  # as unsure as could be found
    maximum: Tensor  # unsure where the network is right, confident where it is wrong: the largest ECE


def calibration_attack(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    epsilon: float | Tensor,
    steps: int = 20,
    box: Box | None = None,
    generator: torch.Generator | None = None,
) -> CalibrationAttack:
    """Attack the confidence upward and downward, and pick what hurts calibration most; `epsilon` is one, or (B,)."""
    up = torch.ones(len(inputs), dtype=inputs.dtype, device=inputs.device)
    over, under = (
        confidence_attack(net, inputs, sign, epsilon=epsilon, steps=steps, box=box, generator=generator)
        for sign in (up, -up)
    )
    with torch.no_grad():
        right = (net(inputs).argmax(1) == labels).view(-1, *[1] * (inputs.ndim - 1))
    return CalibrationAttack(over, under, torch.where(right, under, over))


def confidence_attack(
    net: nn.Module,
    inputs: Tensor,
    sign: Tensor,
    *,
    epsilon: float | Tensor,
    steps: int = 20,
    box: Box | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Attack the confidence by APGD under the condition that the class stays; `sign` (B,) is 1 for up, -1 for down.

    `epsilon` is one for all samples, or (B,).
    """
    with torch.no_grad():
        predicted = net(inputs).argmax(1)

    def goal(points: Tensor) -> Tensor:
        logits = net(points)
        lead = margin(logits, predicted)
        confidence = torch.log_softmax(logits, 1).gather(1, predicted.unsqueeze(1)).squeeze(1)
        # beyond the boundary the way back counts, not the confidence
        return torch.where(lead > 0, sign * confidence, lead - OUTSIDE)

    return best_within(goal, inputs, epsilon, steps=steps, box=box, generator=generator)


def best_within(objective: Callable[[Tensor], Tensor], inputs: Tensor, epsilon: float | Tensor, **how: Any) -> Tensor:
    """What APGD finds within epsilon (one, or (B,)) where it is better than the input, and else the input itself."""
    radius = torch.as_tensor(epsilon, dtype=inputs.dtype, device=inputs.device).expand(len(inputs))
    points = apgd(objective, inputs, radius, **how)
    with torch.no_grad():
        better = objective(points) > objective(inputs)
    return torch.where(better.view(-1, *[1] * (inputs.ndim - 1)), points, inputs)
