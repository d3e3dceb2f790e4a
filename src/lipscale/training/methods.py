"""What tells the methods apart: the loss, and what becomes of a batch before the network learns from it.

Everything else, Algorithm 1 with or without its feedback, is one loop for all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lipscale import losses
from lipscale.attacks import confidence_attack, signed_attack, worst_points
from lipscale.attacks.ball import Box
from lipscale.layers.evaluation import evaluation_mode
from lipscale.losses import AccuracyVersusUncertainty, RobustnessSmoothing, offset_of
from lipscale.settings import TrainingSettings
from lipscale.training.batches import Batch

OF_A_BATCH = ("mmce", "mmce-weighted", "avuc")  # losses that are no mean over samples


class Loss(Protocol):
    """Logits (B, C) and labels (B,) to a mean; `weights` (C,) let some classes count more."""

    def __call__(self, logits: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """The mean loss of a batch."""


# the network, a batch and its labels, and a random stream, to the batch that is learned from
Transform = Callable[[nn.Module, Tensor, Tensor, torch.Generator], Batch]


@dataclass(frozen=True)
class Method:
    """A way to train: the loss, the batch that it is taken on, and whether it sees a batch as a whole."""

    loss: Loss
    transform: Transform
    is_of_a_batch: bool = False


def method_of(
    settings: TrainingSettings, *, box: Box | None = None, constant: Callable[[], float] = lambda: 1.0
) -> Method:
    """The method that the settings name; attacked inputs stay in the box, and `constant` tells L as it moves."""
    within: dict[str, Any] = {"epsilon": settings.attack_epsilon, "steps": settings.attack_steps, "box": box}
    transforms: dict[str, Transform] = {
        "pgd-at": partial(adversarial_batch, **within),
        "caat": partial(miscalibrated_batch, **within),
        "caat-authors": partial(both_attacked_batches, steps=settings.attack_steps, box=box),
    }
    return Method(
        loss_of(settings, constant),
        transforms.get(settings.method, as_it_is),
        is_of_a_batch=settings.loss in OF_A_BATCH,
    )


def loss_of(settings: TrainingSettings, constant: Callable[[], float]) -> Loss:
    """The loss that the settings name. A margin is a radius and moves with L; without an L it is one of logits."""
    asked, radius = settings.asked, settings.asked("margin")

    def reach(radius: float) -> float:
        # of no matter where none is asked for, and to read L takes time on a GPU
        return offset_of(radius, constant()) if radius and settings.is_constrained else radius

    by_name: dict[str, Loss] = {
        "offset": _moving(losses.offset_cross_entropy, lambda: {"offset": asked("offset") + reach(radius)}),
        "tau": partial(losses.tau_cross_entropy, tau=asked("tau")),
        "hkr": _moving(losses.hkr_loss, lambda: {"lipschitz": constant()}, radius=radius, alpha=asked("alpha")),
        "annealing": partial(losses.annealed_cross_entropy, offset=asked("offset"), gamma=asked("gamma")),
        "emma": _moving(losses.emma_loss, lambda: {"lipschitz": constant()}, radius=radius),
        "cll": _moving(losses.cll_loss, lambda: {"lipschitz": constant()}, radius=radius, slack=asked("slack")),
        "certificate": partial(losses.certificate_loss, gamma=asked("gamma")),
        "label-smoothing": partial(losses.smoothed_cross_entropy, smoothing=settings.smoothing),
        "focal": partial(losses.focal_loss, gamma=settings.focal_gamma),
        "focal-schedule": losses.scheduled_focal_loss,
        "dual-focal": partial(losses.dual_focal_loss, gamma=asked("gamma")),
        "mmce": partial(losses.mmce_loss, penalty=asked("penalty")),
        "mmce-weighted": partial(losses.mmce_loss, penalty=asked("penalty"), balanced=True),
        "avuc": AccuracyVersusUncertainty(penalty=asked("penalty")),
        "mbls": _moving(losses.margin_smoothing_loss, lambda: {"margin": reach(radius)}, penalty=asked("penalty")),
        "ar-adals": RobustnessSmoothing(step=asked("alpha"), unit=lambda: reach(1.0)),
    }
    return by_name.get(settings.loss, losses.offset_cross_entropy)


def _moving(loss: Callable[..., Tensor], now: Callable[[], dict[str, float]], **known: float) -> Loss:
    """A loss some of whose parameters are asked for at every batch, because they move with L."""

    def at_present(logits: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
        return loss(logits, labels, **now(), **known, weights=weights)

    return at_present


def as_it_is(net: nn.Module, inputs: Tensor, labels: Tensor, generator: torch.Generator) -> Batch:
    """The batch itself."""
    return inputs, labels


def adversarial_batch(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    *,
    epsilon: float,
    steps: int,
    box: Box | None,
) -> Batch:
    """Adversarial training (Madry et al., 2018): each input is moved, by PGD, to where its loss is large.

    The attack sees the weights that train, in evaluation mode: the statistics of batch normalisation stay untouched.
    """
    with evaluation_mode(net):
        return worst_points(net, inputs, labels, epsilon=epsilon, steps=steps, box=box, generator=generator), labels


def miscalibrated_batch(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    *,
    epsilon: float,
    steps: int,
    box: Box | None,
) -> Batch:
    """Calibration attack adversarial training, CAAT (Obadinma et al., 2024): learn from attacks on the confidence.

    A coin decides for each sample whether it is made over-confident or under-confident; either way the network's
    answer stays what it was. The labels are the true ones.
    """
    up = torch.rand(len(inputs), generator=generator) < 0.5
    with evaluation_mode(net):
        sign = torch.where(up, 1.0, -1.0).to(inputs)
        return confidence_attack(net, inputs, sign, epsilon=epsilon, steps=steps, box=box, generator=generator), labels


def both_attacked_batches(
    net: nn.Module, inputs: Tensor, labels: Tensor, generator: torch.Generator, *, steps: int, box: Box | None
) -> Batch:
    """CAAT as in its authors' code: every sample twice, made under-confident and made over-confident, none clean."""
    with evaluation_mode(net):
        attack = partial(signed_attack, net, inputs, labels, steps=steps, box=box, generator=generator)
        return torch.cat((attack(up=False), attack(up=True))), labels.repeat(2)
