"""All of it at once: every scalar with its interval, the ECE's floor and limit, and the verdict on calibration."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipscale.metrics import binned
from lipscale.metrics.binned import Bins, Statistic, by_class, equal_mass, equal_width
from lipscale.metrics.floor import CalibratedTwin
from lipscale.metrics.intervals import NORMAL, Interval, error_interval, mean_interval, share_interval
from lipscale.metrics.predictions import Predictions
from lipscale.metrics.smooth import bandwidth, grid_of_gaps, smooth_ece_at
from lipscale.metrics.tolerance import TOLERANCE, error_of

COARSE = 512  # cells of the grid on which the smooth ECE's interval is simulated


@dataclass(frozen=True)
class Intervals:
    """The 95 % interval of each metric."""

    accuracy: Interval
    nll: Interval
    brier: Interval
    brier_calibration: Interval
    ece: Interval
    esce: Interval
    maximum_ce: Interval
    adaptive_ece: Interval
    classwise_ece: Interval
    smooth_ece: Interval


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What logits and labels tell: accuracy, calibration, and how far to trust both."""

    accuracy: float
    nll: float
    brier: float
    brier_calibration: float  # the Brier score's two parts
    brier_refinement: float
    ece: float
    esce: float  # mean confidence minus accuracy: positive is over-confident
    maximum_ce: float
    adaptive_ece: float
    classwise_ece: float
    smooth_ece: float
    ece_floor: float  # the mean ECE of a perfectly calibrated model at this sample size, and its 95 % band
    ece_band: Interval
    ece_limit: float  # what a model with a T* from so many calibration samples exceeds in 5 % of draws
    as_calibrated_as_its_set: bool  # ece <= ece_limit: as good as its calibration set allows
    calibration_error: float  # mean |confidence - accuracy| over groups of samples, corrected for noise
    calibration_error_limits: Interval  # a lower and an upper limit, each with 95 % confidence
    calibration_tolerance: float
    calibrated: bool | None  # within the tolerance, by those limits; none where the samples cannot decide
    samples_to_decide: int | None  # about how many test samples could, where these cannot
    bins: int
    intervals: Intervals


def measure(
    logits: Tensor,
    labels: Tensor,
    *,
    bins: int | None = None,
    calibration_size: int = 0,
    tolerance: float = TOLERANCE,
    probabilities: bool = False,
) -> Scores:
    """Every metric of this package, each with its 95 % interval, and whether the model is calibrated.

    Args:
        logits: Of test samples, (N, C), from torch or numpy.
        labels: Their true classes, (N,).
        bins: Of the ECE; left out, 15, or as many as samples where those are fewer.
        calibration_size: How many samples T* was fitted on. Only `ece_limit` allows for its error.
        tolerance: The calibration error that may be ignored: 0.02 is two points.
        probabilities: Whether the first argument holds probabilities.

    Returns:
        The scores.

    Example:
        >>> scores = measure(torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 1]))
        >>> round(scores.accuracy, 2), scores.calibrated  # three samples decide nothing
        (0.67, None)
    """
    predictions = Predictions.of(logits, labels, probabilities=probabilities)
    bins = binned.bins_for(len(predictions)) if bins is None else bins
    found = _with_intervals(predictions, bins)
    values = {name: value for name, (value, _) in found.items()}
    twin, error = CalibratedTwin(predictions, bins), error_of(predictions, tolerance=tolerance)
    floor, limit = twin.floor(), twin.limit(calibration_size=calibration_size)
    return Scores(
        **values,
        brier_refinement=values["brier"] - values["brier_calibration"],
        ece_floor=floor.mean,
        ece_band=(floor.lower, floor.upper),
        ece_limit=limit,
        as_calibrated_as_its_set=values["ece"] <= limit,
        calibration_error=error.value,
        calibration_error_limits=error.limits,
        calibration_tolerance=tolerance,
        calibrated=error.within,
        samples_to_decide=error.samples_to_decide,
        bins=bins,
        intervals=Intervals(**{name: interval for name, (_, interval) in found.items()}),
    )


def _with_intervals(predictions: Predictions, bins: int) -> dict[str, tuple[float, Interval]]:
    """Each metric with its 95 % interval."""
    (n, classes), nll, brier = predictions.values.shape, predictions.nll, predictions.brier
    width, mass, classwise = (cells(predictions, bins) for cells in (equal_width, equal_mass, by_class))
    accuracy = float(predictions.correct.mean())
    # the cells of all classes share n samples, so their mean square is 1 / C of the Brier score's part
    low, high = error_interval(classwise, binned.mean_square)

    def error(cells: Bins, statistic: Statistic) -> tuple[float, Interval]:
        return cells.error(statistic), error_interval(cells, statistic)

    return {
        "accuracy": (accuracy, share_interval(accuracy, n)),
        "nll": (float(nll.mean()), mean_interval(nll)),
        "brier": (float(brier.mean()), mean_interval(brier)),
        "brier_calibration": (binned.brier_calibration(classwise, n), (classes * low, classes * high)),
        "ece": error(width, binned.mean_absolute),
        "esce": (width.error(binned.mean_signed), _signed_interval(predictions)),
        "maximum_ce": error(width, binned.largest),
        "adaptive_ece": error(mass, binned.mean_absolute),
        "classwise_ece": error(classwise, binned.mean_absolute),
        "smooth_ece": _smooth(predictions),
    }


def _signed_interval(predictions: Predictions) -> Interval:
    """Of mean confidence minus accuracy; a run of correct answers must not pass for certainty.

    It holds the d that would not be surprised by the measured g: (g - d)^2 <= z^2 V(d) / N, with V(d) = mean r (1 - r)
    for rates r = p - d, or more where the sample varies more than V(g). Where all p are equal it is Wilson's.
    """
    n, p = len(predictions), predictions.confidence
    gap = p - predictions.correct
    g, calibrated, slope = float(gap.mean()), predictions.variance, float(2 * p.mean() - 1)
    expected = calibrated + slope * g - g**2  # V(g)
    wider = max(1.0, float(gap.var(correction=0)) / expected) if expected > 0 else 1.0
    z = NORMAL**2 * wider / n
    centre, root = g + z * slope / 2, z * (slope * g - g**2 + calibrated + z * (slope**2 / 4 + calibrated))
    half = math.sqrt(max(root, 0.0))
    return (centre - half) / (1 + z), (centre + half) / (1 + z)


def _smooth(predictions: Predictions) -> tuple[float, Interval]:
    """The smooth ECE, and its interval at the bandwidth that was found, on a coarser grid."""
    gaps = grid_of_gaps(predictions)
    sigma = bandwidth(gaps)
    cell = (predictions.confidence * COARSE).round().long()
    cells = binned.tally(cell, COARSE + 1, predictions.confidence, predictions.correct)
    place = cells.count.nonzero().squeeze(1)  # only cells that hold samples are simulated

    def statistic(gap: Tensor, count: Tensor) -> Tensor:
        grid = torch.zeros(*gap.shape[:-1], COARSE + 1, dtype=gap.dtype, device=gap.device)
        grid[..., place] = gap / count.sum()
        return smooth_ece_at(grid, max(sigma, 2 / COARSE))

    return min(1.0, float(smooth_ece_at(gaps, sigma))), error_interval(cells, statistic)
