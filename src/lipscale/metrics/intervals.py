"""Intervals that are honest about bias: 95 % for means, shares, and calibration errors.

A calibration error is a sum of absolute gaps, so noise alone makes it positive, and a plain bootstrap adds that noise a
second time. Here the interval is read off backwards: it holds the errors under which the value that was measured would
not be a surprise. Errors are those of a model whose gaps are `scale` times the measured ones; scale zero is a
perfectly calibrated model, so an error that noise alone explains has an interval that starts at zero.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor

from lipscale.metrics.binned import Bins, Statistic

Interval = tuple[float, float]

NORMAL = 1.959963984540054  # the 97.5 % point of the normal distribution
TAIL = 0.025
REPLICATES = 200
HALVINGS = 9  # the scale's resolution, 2^-9 of its bracket
LARGEST_SCALE = 64.0


def mean_interval(values: Tensor) -> Interval:
    """mean +- 1.96 s / sqrt(N), for the mean of many independent values; not below 0 where none of them is."""
    if len(values) < 2 or not values.isfinite().all():  # one value, or a true class of probability zero
        return (-math.inf, math.inf)
    mean, half = float(values.mean()), NORMAL * float(values.std()) / math.sqrt(len(values))
    low = mean - half
    return (max(low, 0.0) if float(values.min()) >= 0 else low), mean + half


def share_interval(share: float, samples: int) -> Interval:
    """Wilson's interval for a share of samples: inside [0, 1], and not a point where all or none are."""
    z = NORMAL**2 / samples
    centre = (share + z / 2) / (1 + z)
    half = NORMAL * math.sqrt(share * (1 - share) / samples + z / (4 * samples)) / (1 + z)
    # at the ends Wilson's interval begins exactly there; rounding must not move it
    return (0.0 if share == 0 else centre - half), (1.0 if share == 1 else centre + half)


def exact_interval(hits: int, samples: int) -> Interval:
    """Clopper and Pearson's interval for a share of samples: at least 95 % sure, whatever the share."""
    low = float(betaincinv(hits, samples - hits + 1, TAIL)) if hits > 0 else 0.0
    return low, float(betaincinv(hits + 1, samples - hits, 1 - TAIL)) if hits < samples else 1.0


def error_interval(cells: Bins, statistic: Statistic) -> Interval:
    """The calibration errors under which the measured one lies between the 2.5 % and the 97.5 % point."""
    kept = cells.count > 0
    count, confidence, gap = cells.count[kept], cells.confidence[kept], cells.gap[kept]
    measured = statistic(gap, count)

    def rate(scale: float) -> Tensor:  # how often a cell's predictions come true; at most always
        return ((confidence - scale * gap) / count).clamp(0, 1)

    def expected(scale: float) -> float:
        return float(statistic(confidence - count * rate(scale), count))

    def simulated(scale: float) -> Tensor:
        return statistic(confidence - draw_correct(count, rate(scale).expand(REPLICATES, -1), seed=0), count)

    lower = last_scale_where(lambda scale: share(simulated(scale) >= measured) < TAIL)  # hardly ever that large
    upper = last_scale_where(lambda scale: share(simulated(scale) <= measured) >= TAIL)  # still as small at times
    return (expected(lower) if lower else 0.0), max(expected(upper), float(measured))


def last_scale_where(holds: Callable[[float], bool]) -> float:
    """The end of the scales 0 <= scale where a condition holds; zero if it never does."""
    if not holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < LARGEST_SCALE and holds(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def share(holds: Tensor) -> float:
    """How often a condition holds."""
    return float(holds.double().mean())


def draw_correct(count: Tensor, rate: Tensor, seed: int) -> Tensor:
    """How many of `count` (K,) predictions come true at these rates (R, K): binomial, float64."""
    # numpy draws large binomials in constant time
    drawn = np.random.default_rng(seed).binomial(count.long().cpu().numpy(), rate.cpu().numpy())
    return torch.from_numpy(drawn).to(rate)
