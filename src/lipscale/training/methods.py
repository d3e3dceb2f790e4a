"""What tells the methods apart: the loss, and what becomes of a batch before the network learns from it.

Everything else, Algorithm 1 with or without its feedback, is one loop for all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lipscale.attacks import confidence_attack, worst_points
from lipscale.attacks.ball import Box
from lipscale.layers.evaluation import evaluation_mode
from lipscale.losses import (
    annealed_cross_entropy,
    certificate_loss,
    cll_loss,
    emma_loss,
    focal_loss,
    hkr_loss,
    offset_cross_entropy,
    offset_of,
    scheduled_focal_loss,
    smoothed_cross_entropy,
    tau_cross_entropy,
)
from lipscale.settings import TrainingSettings


class Loss(Protocol):
    """Logits (B, C) and labels (B,) to a mean; `weights` (C,) let some classes count more."""

    def __call__(self, logits: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """The mean loss of a batch."""


# the network, a batch and its labels, and a random stream, to the batch that is learned from
Transform = Callable[[nn.Module, Tensor, Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Method:
    """A way to train: the loss, and the batch that it is taken on."""

    loss: Loss
    transform: Transform


def method_of(
    settings: TrainingSettings, *, box: Box | None = None, constant: Callable[[], float] = lambda: 1.0
) -> Method:
    """The method that the settings name; attacked inputs stay in the box, and `constant` tells L as it moves."""
    within: dict[str, Any] = {"epsilon": settings.attack_epsilon, "steps": settings.attack_steps, "box": box}
    methods: dict[str, Method] = {
        "list": Method(partial(objective, settings=settings, constant=constant), as_it_is),
        "fixed": Method(partial(objective, settings=settings, constant=constant), as_it_is),
        "standard": Method(offset_cross_entropy, as_it_is),
        "label-smoothing": Method(partial(smoothed_cross_entropy, smoothing=settings.smoothing), as_it_is),
        "focal": Method(partial(focal_loss, gamma=settings.focal_gamma), as_it_is),
        "focal-schedule": Method(scheduled_focal_loss, as_it_is),
        "pgd-at": Method(offset_cross_entropy, partial(adversarial_batch, **within)),
        "caat": Method(offset_cross_entropy, partial(miscalibrated_batch, **within)),
    }
    return methods[settings.method]


def objective(
    logits: Tensor,
    labels: Tensor,
    *,
    settings: TrainingSettings,
    constant: Callable[[], float],
    weights: Tensor | None = None,
) -> Tensor:
    """What a network of constant L is trained for. A margin is a radius, and moves with L."""
    asked, radius = settings.asked, settings.asked("margin")
    # of no matter to the others, and to read it takes time on a GPU
    lipschitz = constant() if radius else 1.0
    objectives: dict[str, Loss] = {
        "offset": partial(offset_cross_entropy, offset=asked("offset") + offset_of(radius, lipschitz)),
        "tau": partial(tau_cross_entropy, tau=asked("tau")),
        "hkr": partial(hkr_loss, lipschitz=lipschitz, radius=radius, alpha=asked("alpha")),
        "annealing": partial(annealed_cross_entropy, offset=asked("offset"), gamma=asked("gamma")),
        "emma": partial(emma_loss, lipschitz=lipschitz, radius=radius),
        "cll": partial(cll_loss, lipschitz=lipschitz, radius=radius, slack=asked("slack")),
        "certificate": partial(certificate_loss, gamma=asked("gamma")),
    }
    return objectives[settings.objective](logits, labels, weights=weights)


def as_it_is(net: nn.Module, inputs: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """The batch itself."""
    return inputs


def adversarial_batch(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    *,
    epsilon: float,
    steps: int,
    box: Box | None,
) -> Tensor:
    """Adversarial training (Madry et al., 2018): each input is moved, by PGD, to where its loss is large.

    The attack sees the weights that train, in evaluation mode: the statistics of batch normalisation stay untouched.
    """
    with evaluation_mode(net):
        return worst_points(net, inputs, labels, epsilon=epsilon, steps=steps, box=box, generator=generator)


def miscalibrated_batch(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    *,
    epsilon: float,
    steps: int,
    box: Box | None,
) -> Tensor:
    """Calibration attack adversarial training, CAAT (Obadinma et al., 2024): learn from attacks on the confidence.

    A coin decides for each sample whether it is made over-confident or under-confident; either way the network's
    answer stays what it was. The labels are the true ones.
    """
    up = torch.rand(len(inputs), generator=generator) < 0.5
    with evaluation_mode(net):
        sign = torch.where(up, 1.0, -1.0).to(inputs)
        return confidence_attack(net, inputs, sign, epsilon=epsilon, steps=steps, box=box, generator=generator)
