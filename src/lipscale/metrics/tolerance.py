"""How far confidence is from accuracy, with limits that hold, and whether that is within a tolerance.

Samples are sorted by confidence into six to fifteen groups of equal size. The error is the mean over groups of
|confidence - accuracy|: a wrong temperature counts, and so does a wrong shape, over-confident here and under-confident
there. It is at least |ESCE|. Noise alone makes its plain estimate positive, so limits are read off backwards, from
simulated models whose error is known. How such an error is spread over the samples nobody knows, so the limits take the
spread that is hardest to see (upper limit) or easiest to mistake for more (lower limit).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipscale.errors import UserError
from lipscale.metrics.binned import Bins, equal_mass
from lipscale.metrics.intervals import Interval, draw_correct, last_scale_where, share
from lipscale.metrics.predictions import Predictions

FEWEST_GROUPS, MOST_GROUPS = 6, 15
MARGIN, PER_GROUP = 2.3, 0.8  # see `groups_for`
CELLS = 24  # groups are simulated in parts, about so many in all, so that confidences within one keep their differences
REPLICATES = 1999
LEVEL = 0.05  # of each limit
TOLERANCE = 0.02
MOST_SAMPLES = 10**9


@dataclass(frozen=True)
class CalibrationError:
    """The mean distance of confidence from accuracy, and what follows for a tolerance."""

    value: float  # corrected for noise
    limits: Interval  # a lower and an upper limit, each with 95 % confidence
    tolerance: float
    within: bool | None  # whether the error is within the tolerance; none where the samples cannot decide
    samples_to_decide: int | None  # about how many would; none where they did


def calibration_error(
    logits: Tensor, labels: Tensor, *, tolerance: float = TOLERANCE, probabilities: bool = False, seed: int = 0
) -> CalibrationError:
    """How far confidence is from accuracy, and whether that is within a tolerance.

    Args:
        logits: Of test samples, (N, C), from torch or numpy.
        labels: Their true classes, (N,).
        tolerance: The error that may be ignored: 0.02 is two points.
        probabilities: Whether the first argument holds probabilities.
        seed: Of the simulation.

    Returns:
        The error with its limits, and the verdict.

    Example:
        >>> logits = torch.zeros(1000, 2)
        >>> logits[:, 0] = 2.0  # a confidence of 0.88 in class 0, which is right in half of the cases
        >>> calibration_error(logits, torch.arange(1000) % 2).within
        False
    """
    return error_of(Predictions.of(logits, labels, probabilities=probabilities), tolerance=tolerance, seed=seed)


def error_of(predictions: Predictions, *, tolerance: float = TOLERANCE, seed: int = 0) -> CalibrationError:
    """See `calibration_error`."""
    if not 0 < tolerance < 1:
        raise UserError(f"expected 0 < `calibration_tolerance` < 1, got {tolerance}")
    twin = _Simulation(predictions, groups_for(predictions, tolerance), seed)
    lower, upper = twin.lower(), twin.upper()
    value = min(max(twin.typical(), lower), upper)
    within = True if upper < tolerance else False if lower > tolerance else None
    needed = None if within is not None else _samples_to_decide(predictions, value, (lower, upper), tolerance)
    return CalibrationError(value, (lower, upper), tolerance, within, needed)


def groups_for(predictions: Predictions, tolerance: float) -> int:
    """As many groups as leave a calibrated model likely to be called so: more see finer shapes, but add up more noise.

    In standard errors sqrt(v / N) of the mean, v = mean p (1 - p), K groups of a calibrated model show about
    0.8 sqrt(K), and one that is off by the tolerance shows at least tolerance / sqrt(v / N) - 1.6 in 95 % of draws. The
    0.7 in between is for the spread of the first.
    """
    error = math.sqrt(predictions.variance / len(predictions))
    spare = tolerance / error - MARGIN if error > 0 else math.inf
    resolved = int((min(max(spare, 0.0), 100.0) / PER_GROUP) ** 2)
    return min(max(resolved, FEWEST_GROUPS), MOST_GROUPS, len(predictions))


def _samples_to_decide(predictions: Predictions, value: float, limits: Interval, tolerance: float) -> int:
    """About how many samples would decide: as many as a calibrated model needs, or more if there are so many already.

    Then the error is near the tolerance, and its limits, which approach it as 1 / sqrt(n), must become narrow enough.
    """
    samples = len(predictions)
    needed = predictions.variance * ((MARGIN + PER_GROUP * math.sqrt(FEWEST_GROUPS)) / tolerance) ** 2
    if samples >= needed:
        width = limits[1] - value if value < tolerance else value - limits[0]
        needed = samples * (width / max(abs(value - tolerance), 1e-9)) ** 2
    if needed >= MOST_SAMPLES:
        return MOST_SAMPLES
    digits = 1 - int(math.log10(max(needed, 1.0)))  # two digits are all that such a guess is worth
    return max(samples + 1, math.ceil(round(needed, digits)))


class _Simulation:
    """Models with the same confidences and a known error, and how often they show one as large as was measured.

    A model is a direction u over the cells: confidence minus rate of success is scale * u, as far as rates allow.
    """

    def __init__(self, predictions: Predictions, groups: int, seed: int) -> None:
        samples = len(predictions)
        self.seed, self.samples, self.groups = seed, samples, groups
        self.parts = max(1, min(CELLS // groups, samples // groups))
        cells = equal_mass(predictions, self.groups * self.parts)
        self.cells = Bins(*(part.cpu() for part in (cells.count, cells.confidence, cells.correct)))
        self.mean = self.cells.mean_confidence
        self.noise = self.mean * (1 - self.mean)  # the variance of a calibrated model's answer
        self.measured = float(self._error(self.cells.gap))
        self.unit = self.measured + 1 / math.sqrt(samples)  # of the scale: the size of errors that are tried first

    def upper(self) -> float:
        """The largest error under which one as small as was measured appears in 5 % of draws.

        Least of it shows where every group has the same signal in proportion to its noise.
        """

        def possible(rate: Tensor) -> bool:
            return self._share_below(rate) >= LEVEL

        limit, spread, even = self.measured, self.noise.sqrt(), torch.ones_like(self.noise)
        for u in (spread, -spread, even, -even):  # over- and under-confident
            # at one scale errors are the same in all directions, but for rates that end at 0 or 1
            if possible(self._rates(u)(limit / self.unit)):
                limit = max(limit, self._error_where(possible, u))
        return limit

    def lower(self) -> float:
        """The smallest error under which one as large as was measured appears in 5 % of draws.

        Most shows where the error sits in one group, and noise adds to it in the others.
        """

        def too_small(rate: Tensor) -> bool:
            return share(self._simulated(rate) >= self.measured - 1e-12) < LEVEL

        if not too_small(self.mean):
            return 0.0
        noise = self.noise.view(self.groups, -1).sum(1)
        one_group = torch.eye(self.groups, dtype=torch.float64).repeat_interleave(self.parts, 1)
        noisy, calm = one_group[int(noise.argmax())], one_group[int(noise.argmin())]
        limit = self._error_where(too_small, self.cells.gap / self.cells.count.clamp(min=1))
        for u in (noisy, -noisy, calm, -calm):
            if not too_small(self._rates(u)(limit / self.unit)):
                limit = min(limit, self._error_where(too_small, u))
        return limit

    def typical(self) -> float:
        """The error under which the measured one is the median."""
        sign = 1.0 if float(self.cells.gap.sum()) >= 0 else -1.0
        return self._error_where(lambda rate: self._share_below(rate) >= 0.5, sign * self.noise.sqrt())

    def _error_where(self, holds: Callable[[Tensor], bool], u: Tensor) -> float:
        """The largest error in this direction at which a condition on the rates holds."""
        rates = self._rates(u)
        scale = last_scale_where(lambda scale: holds(rates(scale)))
        return float(self._error(self.cells.confidence - self.cells.count * rates(scale))) if scale else 0.0

    def _rates(self, u: Tensor) -> Callable[[float], Tensor]:
        """The rates of success by scale: at 1 the error is `unit`, if no rate is beyond 0 or 1."""
        size = float(self._error(self.cells.count * u))
        step = u * (self.unit / size) if size > 0 else u
        return lambda scale: (self.mean - scale * step).clamp(0, 1)

    def _error(self, gap: Tensor) -> Tensor:
        """sum over groups of |gap| / N, for gaps (..., cells)."""
        return gap.unflatten(-1, (self.groups, self.parts)).sum(-1).abs().sum(-1) / self.samples

    def _simulated(self, rate: Tensor) -> Tensor:
        drawn = draw_correct(self.cells.count, rate.expand(REPLICATES, -1), self.seed)
        return self._error(self.cells.confidence - drawn)

    def _share_below(self, rate: Tensor) -> float:
        return share(self._simulated(rate) <= self.measured + 1e-12)
