"""Auto-PGD in the l2 norm (Croce and Hein, 2020): a projected gradient ascent that chooses its own steps."""

from collections.abc import Callable

import torch
from torch import Tensor

from lipscale.attacks.ball import Box, direction, norms, project, value_and_gradient

MOMENTUM = 0.75
ENOUGH_PROGRESS = 0.75  # halve the step where fewer than this share of steps since the last checkpoint improved


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
