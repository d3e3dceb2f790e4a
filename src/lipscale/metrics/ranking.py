"""How well a score ranks the samples of one class above all others: its thresholds, and what sums them up."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lipscale.metrics.intervals import NORMAL


class OperatingPoints(NamedTuple):
    """What comes of answering a class from a threshold on; one point for each score that occurs, the highest first."""

    thresholds: Tensor  # (K,)
    hits: Tensor  # (K,), samples of the class with at least that score
    alarms: Tensor  # (K,), samples of other classes with at least that score


def operating_points(scores: Tensor, positive: Tensor) -> OperatingPoints:
    """The points of the ROC and of the precision-recall curve.

    Args:
        scores: (N,), such as the probability of a class.
        positive: (N,), whether each sample is of that class.

    Returns:
        Thresholds, hits and false alarms; equal scores share a point.

    Example:
        >>> points = operating_points(torch.tensor([0.9, 0.2, 0.2]), torch.tensor([True, True, False]))
        >>> points.hits.tolist(), points.alarms.tolist()
        ([1.0, 2.0], [0.0, 1.0])
    """
    ordered, order = scores.sort(descending=True)
    last = torch.ones_like(positive, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    hits = positive[order].double().cumsum(0)[last]
    return OperatingPoints(ordered[last], hits, last.nonzero().squeeze(1) + 1 - hits)


def auc(points: OperatingPoints) -> float | None:
    """The share of pairs, one of the class and one not, that are ranked right; ties count half. None without pairs."""
    hits, alarms = points.hits, points.alarms
    if len(hits) == 0 or hits[-1] == 0 or alarms[-1] == 0:
        return None
    before = torch.cat((hits.new_zeros(1), hits[:-1]))
    new_alarms = torch.diff(alarms, prepend=alarms.new_zeros(1))
    return float(((before + hits) / 2 * new_alarms).sum() / (hits[-1] * alarms[-1]))


def auc_interval(inside: Tensor, outside: Tensor) -> tuple[float, float]:
    """The 95 % interval of the AUC of scores of two sets, after DeLong et al. (1988).

    The AUC is the mean, over either set, of the share of the other one that is ranked right; both sets' spreads add up.
    """
    spread = 0.0
    ordered = [part.sort().values for part in (inside, outside)]
    for own, other in zip(ordered, reversed(ordered), strict=True):
        below, upto = (torch.searchsorted(other, own, right=right).double() for right in (False, True))
        shares = (below + upto) / 2 / len(other)
        spread += float(shares.var()) / len(own) if len(own) > 1 else math.inf
    half, value = NORMAL * math.sqrt(spread), float(auc_of(inside, outside))
    return max(0.0, value - half), min(1.0, value + half)


def auc_of(inside: Tensor, outside: Tensor) -> float:
    """How often a score of the first set is above one of the second; ties count half. (N,), (M,), neither empty."""
    found = auc(_of_two(inside, outside))
    assert found is not None
    return found


def false_positive_rate(inside: Tensor, outside: Tensor, *, hits: float = 0.95) -> float:
    """FPR95: the share of the second set that passes where 95 % of the first do (Liang et al. 2018)."""
    points = _of_two(inside, outside)
    first = int((points.hits >= hits * len(inside)).nonzero()[0])
    return float(points.alarms[first] / len(outside))


def _of_two(inside: Tensor, outside: Tensor) -> OperatingPoints:
    belongs = torch.arange(len(inside) + len(outside), device=inside.device) < len(inside)
    return operating_points(torch.cat((inside, outside)), belongs)


def average_precision(points: OperatingPoints) -> float | None:
    """The mean precision over the samples of the class, each at the threshold that just finds it. None without any."""
    hits, alarms = points.hits, points.alarms
    if len(hits) == 0 or hits[-1] == 0:
        return None
    new_hits = torch.diff(hits, prepend=hits.new_zeros(1))
    return float((hits / (hits + alarms) * new_hits).sum() / hits[-1])
