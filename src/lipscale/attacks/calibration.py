"""Calibration attacks (Obadinma et al., 2024): change how sure a network is, and leave its answer alone."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lipscale.attacks.apgd import apgd
from lipscale.attacks.ball import Box
from lipscale.losses import margin

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

    radius = torch.as_tensor(epsilon, dtype=inputs.dtype, device=inputs.device).expand(len(inputs))
    points = apgd(goal, inputs, radius, steps=steps, box=box, generator=generator)
    with torch.no_grad():
        better = goal(points) > goal(inputs)  # else the input itself
    return torch.where(better.view(-1, *[1] * (inputs.ndim - 1)), points, inputs)
