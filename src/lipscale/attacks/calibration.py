"""Calibration attacks (Obadinma et al., 2024): change how sure a network is, and leave its answer alone."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lipscale.attacks.apgd import apgd
from lipscale.attacks.ball import Box
from lipscale.certificate import margin

OUTSIDE = 1e4  # any point that keeps its class is better than any that does not


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
    epsilon: float,
    steps: int = 20,
    box: Box | None = None,
    generator: torch.Generator | None = None,
) -> CalibrationAttack:
    """Attack the confidence by APGD, upward and downward, under the condition that the class stays."""
    with torch.no_grad():
        predicted = net(inputs).argmax(1)
    index = predicted.unsqueeze(1)
    shape = (-1, *[1] * (inputs.ndim - 1))

    def confidence(logits: Tensor) -> Tensor:
        return torch.log_softmax(logits, 1).gather(1, index).squeeze(1)

    def objective(sign: int) -> Callable[[Tensor], Tensor]:
        def value(points: Tensor) -> Tensor:
            logits = net(points)
            lead = margin(logits, predicted)
            # beyond the boundary the way back counts, not the confidence
            return torch.where(lead > 0, sign * confidence(logits), lead - OUTSIDE)

        return value

    def strongest(sign: int) -> Tensor:
        radius = torch.full((len(inputs),), epsilon, dtype=inputs.dtype, device=inputs.device)
        goal = objective(sign)
        points = apgd(goal, inputs, radius, steps=steps, box=box, generator=generator)
        with torch.no_grad():
            better = goal(points) > goal(inputs)  # else the input itself
        return torch.where(better.view(shape), points, inputs)

    over, under = strongest(1), strongest(-1)
    right = (predicted == labels).view(shape)
    return CalibrationAttack(over, under, torch.where(right, under, over))
