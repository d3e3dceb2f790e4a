"""How sure a difference is: 95 % intervals over the seeds, and over seeds and test samples together."""

import math
import statistics
from collections.abc import Sequence

from scipy.stats import t as student
from torch import Tensor


def deviation(values: Sequence[float]) -> float:
    """The standard deviation over seeds, 0 for a single one."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def crossed_doubt(values: Tensor) -> float:
    """Half of the 95 % interval of the mean of (seeds, N): other seeds and other test samples were possible, too.

    Var = s_seeds^2 / S + s_samples^2 / N - s_rest^2 / (S N), the two-way layout of random effects: what is neither the
    seed's nor the sample's is in both of the first two, and counts once. Degrees of freedom by Satterthwaite.
    """
    seeds, samples = values.shape
    if seeds < 2:
        return math.inf
    by_seed, by_sample = values.mean(1), values.mean(0)
    rest = values - by_seed.unsqueeze(1) - by_sample + values.mean()
    a, b = float(by_seed.var()) / seeds, float(by_sample.var()) / samples
    shared = float(rest.square().sum()) / ((seeds - 1) * (samples - 1)) / (seeds * samples)
    variance = max(a + b - shared, a, b)
    if variance == 0:
        return 0.0
    freedom = variance**2 / (a**2 / (seeds - 1) + b**2 / (samples - 1))
    return float(student.ppf(0.975, freedom)) * math.sqrt(variance)


def doubt_of(values: Sequence[float], others: Sequence[float] = (), *, comparisons: int = 1) -> float:
    """Half of the 95 % interval of a mean over seeds, or of the difference of two (Welch); inf for a single seed."""
    parts = [(deviation(v) ** 2 / len(v), len(v) - 1) for v in (values, others) if v]
    variance = sum(part for part, _ in parts)
    if any(freedom < 1 for _, freedom in parts):
        return math.inf
    if variance == 0:
        return 0.0
    freedom = variance**2 / sum(part**2 / n for part, n in parts)
    return float(student.ppf(1 - 0.025 / comparisons, freedom)) * math.sqrt(variance)
