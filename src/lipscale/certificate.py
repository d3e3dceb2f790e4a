"""Margins, certified radii and certified accuracy."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lipscale.lipschitz import lipschitz_bound
from lipscale.mode import evaluation_mode


def margin(logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """M(x) = z_y - max_{j != y} z_j; without labels y is the predicted class. (N, C) -> (N,)."""
    chosen = logits.argmax(1) if labels is None else labels
    index = chosen.unsqueeze(1)
    runner_up = logits.scatter(1, index, -math.inf).amax(1)
    return logits.gather(1, index).squeeze(1) - runner_up


def radius_from_logits(logits: Tensor, bound: float, labels: Tensor | None = None) -> Tensor:
    """R_cert(x) = 1[prediction = y] M(x) / (sqrt(2) L), with the proven bound in the place of L (Sec. 2.1).

    Two logits of a jointly B-Lipschitz network differ by a sqrt(2) B-Lipschitz function. (N, C) -> (N,), float64.
    """
    return margin(logits.double(), labels).clamp(min=0) / (math.sqrt(2) * bound)


@torch.no_grad()
def certified_radius(net: nn.Module, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
    """The l2 distance, in the units of the input, within which no change of an input changes its class.

    With labels, a wrongly classified input has radius zero.
    """
    with evaluation_mode(net):
        return radius_from_logits(net(inputs), lipschitz_bound(net), labels)


def certified_accuracy(radii: Tensor, epsilons: Sequence[float]) -> dict[str, float]:
    """CRA: the share of samples that are correct and stay so within epsilon, for radii of labelled samples.

    A radius of zero is a wrong prediction, so it counts at no epsilon, zero included.
    """
    return {f"{eps:.4g}": float(((radii >= eps) & (radii > 0)).double().mean()) for eps in epsilons}
