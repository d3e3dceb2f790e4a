"""The attack that the authors of CAAT train on (Obadinma et al., 2024), as their train_models.py has it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipscale.attacks.ball import Box, value_and_gradient

EPSILON, STEP = 0.1, 2 / 255  # in the l-infinity norm
DROPPED = {True: 0.1, False: 0.95}  # the share of pixels that keep their value, up and down


def signed_attack(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    up: bool,
    steps: int = 10,
    box: Box | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Make the true class surer, or less sure, by steps of 2/255 along the sign of the gradient, the answer unchanged.

    The loss is CE(softmax(p), y), a softmax of probabilities. A change in [-0.1, 0.1] goes through a dropout, and what
    is left of it is divided by the share that is kept, as torch does: where confidence goes down, one pixel in twenty
    moves by up to 2. A step that changes the answer is not taken.
    """
    dropped = DROPPED[up]
    with torch.no_grad():
        answers = net(inputs).argmax(1)
    points = inputs
    for _ in range(steps):
        _, gradient = value_and_gradient(
            lambda x: F.cross_entropy(torch.softmax(net(x), 1), labels, reduction="none"), points
        )
        change = (points - (STEP if up else -STEP) * gradient.sign() - inputs).clamp(-EPSILON, EPSILON)
        kept = torch.rand(inputs.shape, generator=generator, dtype=inputs.dtype) >= dropped
        moved = inputs + change * kept.to(inputs) / (1 - dropped)
        moved = moved if box is None else moved.clamp(*box)
        with torch.no_grad():
            stays = net(moved).argmax(1) == answers
        points = torch.where(stays.view(-1, *[1] * (inputs.ndim - 1)), moved, points)
    return points
