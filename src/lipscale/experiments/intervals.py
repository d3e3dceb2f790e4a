"""How large a difference must be to be significant: 95 % intervals over seeds, and over seeds and test samples."""

import math
import statistics
from collections.abc import Sequence

from scipy.stats import t as student
from torch import Tensor


def deviation(values: Sequence[float]) -> float:
    """The standard deviation over seeds, 0 for a single one."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def relative_spread(values: Sequence[float]) -> float:
    """(max - min) / mean."""
    return (max(values) - min(values)) / statistics.fmean(values)


def half_width(values: Sequence[float], others: Sequence[float] = (), *, comparisons: int = 1) -> float:
    """Half of the 95 % interval of a mean over seeds, or of the difference of two (Welch); inf for a single seed.

    With several `comparisons` each is that much surer (Bonferroni). By hand, because scipy's interval is nan where
    all seeds agree.
    """
    parts = [(deviation(v) ** 2 / len(v), len(v) - 1) for v in (values, others) if v]
    return _half_width(parts, sum(part for part, _ in parts), tail=0.025 / comparisons)


def crossed_half_width(values: Tensor) -> float:
    """Half of the 95 % interval of the mean of (seeds, N): other seeds and other test samples were possible, too.

    Var = s_seeds^2 / S + s_samples^2 / N - s_rest^2 / (S N), the two-way layout of random effects: what is neither the
    seed's nor the sample's is in both of the first two, and counts once.
    """
    seeds, samples = values.shape
    if seeds < 2:
        return math.inf
    by_seed, by_sample = values.mean(1), values.mean(0)
    rest = values - by_seed.unsqueeze(1) - by_sample + values.mean()
    a, b = float(by_seed.var()) / seeds, float(by_sample.var()) / samples
    shared = float(rest.square().sum()) / ((seeds - 1) * (samples - 1)) / (seeds * samples)
    return _half_width([(a, seeds - 1), (b, samples - 1)], max(a + b - shared, a, b), tail=0.025)


def _half_width(parts: Sequence[tuple[float, int]], variance: float, *, tail: float) -> float:
    """Student's t times the standard error; the degrees of freedom of summed variances by Satterthwaite."""
    if any(freedom < 1 for _, freedom in parts):
        return math.inf
    if variance == 0:
        return 0.0
    freedom = variance**2 / sum(part**2 / n for part, n in parts)
    return float(student.ppf(1 - tail, freedom)) * math.sqrt(variance)
