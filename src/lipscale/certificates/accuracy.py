"""Certified accuracy, from the radii of labelled samples."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lipscale.errors import UserError


def certified_accuracy(radii: Tensor, epsilons: Sequence[float]) -> dict[str, float]:
    """CRA: the share of samples that are correct and stay so within epsilon, for radii of labelled samples.

    A radius of zero is a wrong prediction (or a tie), so it counts at no epsilon, zero included.
    """
    if any(not 0 <= eps < math.inf for eps in epsilons):
        raise UserError(f"expected every epsilon >= 0, got {list(epsilons)}")
    return {
        name: float(((radii >= eps) & (radii > 0)).double().mean())
        for name, eps in zip(epsilon_names(epsilons), epsilons, strict=True)
    }


def epsilon_names(epsilons: Sequence[float]) -> list[str]:
    """A name for each epsilon, by which results are listed: four digits, or all where those cannot tell them apart."""
    names = [f"{eps:.4g}" for eps in epsilons]
    return names if len(set(names)) == len(names) else [repr(float(eps)) for eps in epsilons]


def certified_accuracy_curve(radii: Tensor) -> tuple[Tensor, Tensor]:
    """CRA as a step function of epsilon: where it steps, and its value just up to there."""
    steps = radii[radii > 0].sort().values
    return steps, torch.arange(len(steps), 0, -1, dtype=torch.float64) / len(radii)
