"""Attacks on how sure a classifier is: every one within an l2 ball, all behind one signature.

    ace                           unsure where right, sure where wrong, in one step (Galil and El-Yaniv, 2021)
    over, under, maximum          sure, unsure, and as ace, by APGD (Obadinma et al., 2024)
    low-entropy, high-entropy     sure of whatever class, unsure between all (Ledda et al., 2025)
    loss                          the largest cross-entropy: the worst of the log-loss

The first two lines leave every class as it is, the others do not care.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lipscale.attacks.apgd import best_within, confidence_attack
from lipscale.attacks.ball import Box, norms, project, value_and_gradient
from lipscale.attacks.pgd import cross_entropies

DECAY, TRIES = 0.5, 15  # of ACE: its step is halved until the class stays, and given up after so many


def ace(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    box: Box | None = None,
    steps: int = 0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """ACE in l2: x -+ eps g / ||g||, g the gradient of the confidence, down where the answer is right, up where not.

    Where the class would change, eps is halved up to 15 times; then the input stays as it is. One gradient: it has no
    steps, and nothing random.
    """
    with torch.no_grad():
        predicted = net(inputs).argmax(1)
    shape = (-1, *[1] * (inputs.ndim - 1))
    # log p points where p does, and its gradient does not vanish in float32
    _, gradient = value_and_gradient(lambda x: -cross_entropies(net(x), predicted), inputs)
    step = torch.where((predicted == labels).view(shape), -gradient, gradient) / norms(gradient)
    radius = torch.full((len(inputs),), epsilon, dtype=inputs.dtype, device=inputs.device).view(shape)
    found, left = inputs.clone(), torch.ones_like(predicted, dtype=torch.bool)
    for tried in range(TRIES):
        points = project(inputs + DECAY**tried * radius * step, inputs, radius, box)
        with torch.no_grad():
            kept = left & (net(points).argmax(1) == predicted)
        found, left = torch.where(kept.view(shape), points, found), left & ~kept
    return found


def _confidence(direction: str, net: nn.Module, inputs: Tensor, labels: Tensor, **how: Any) -> Tensor:
    """Confidence up, down, or down where the answer is right and else up."""
    up = torch.ones(len(inputs), dtype=inputs.dtype, device=inputs.device)
    if direction == "maximum":
        with torch.no_grad():
            up = torch.where(net(inputs).argmax(1) == labels, -up, up)
    return confidence_attack(net, inputs, -up if direction == "under" else up, **how)


def _entropy(sign: float, net: nn.Module, inputs: Tensor, labels: Tensor, *, epsilon: float, **how: Any) -> Tensor:
    """The least (-1) or the largest (1) entropy -sum_k p_k log p_k."""

    def objective(points: Tensor) -> Tensor:
        log_p = net(points).log_softmax(1)
        return -sign * (log_p.exp() * log_p).sum(1)

    return best_within(objective, inputs, epsilon, **how)


def _loss(net: nn.Module, inputs: Tensor, labels: Tensor, *, epsilon: float, **how: Any) -> Tensor:
    """The largest -log p_y."""
    return best_within(lambda points: cross_entropies(net(points), labels), inputs, epsilon, **how)


# each is called with (net, inputs, labels, epsilon=, steps=, box=, generator=) and returns points
UNCERTAINTY_ATTACKS: dict[str, Callable[..., Tensor]] = {
    "ace": ace,
    "over": partial(_confidence, "over"),
    "under": partial(_confidence, "under"),
    "maximum": partial(_confidence, "maximum"),
    "low-entropy": partial(_entropy, -1.0),
    "high-entropy": partial(_entropy, 1.0),
    "loss": _loss,
}
