"""All of it at once: every scalar with its interval, the ECE's floor and limit, and whether it is calibrated."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipscale.metrics import binned
from lipscale.metrics.binned import bins_for, by_class, equal_mass, equal_width
from lipscale.metrics.floor import CalibratedTwin
from lipscale.metrics.intervals import NORMAL, Interval, error_interval, mean_interval, share_interval
from lipscale.metrics.predictions import Predictions
from lipscale.metrics.scores import brier_of, nll_of
from lipscale.metrics.smooth import bandwidth, grid_of_gaps, smooth_ece_at

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
    ece_limit: float  # what a calibrated model exceeds in 5 % of draws
    calibrated: bool  # ece <= ece_limit
    bins: int
    intervals: Intervals


def measure(
    logits: Tensor, labels: Tensor, *, bins: int | None = None, calibration_size: int = 0, probabilities: bool = False
) -> Scores:
    """Every metric of this package, each with its 95 % interval.

    With `calibration_size` the limit carries the error of a T* that was fitted on so many samples. There are 15 bins,
    or as many as samples where those are fewer.
    """
    predictions = Predictions.of(logits, labels, probabilities=probabilities)
    bins = bins_for(len(predictions)) if bins is None else bins
    n, c = predictions.values.shape
    top, mass, classwise = (cells(predictions, bins) for cells in (equal_width, equal_mass, by_class))
    accuracy, nll, brier = predictions.correct, nll_of(predictions), brier_of(predictions)
    gaps = grid_of_gaps(predictions)
    sigma = bandwidth(gaps)
    twin = CalibratedTwin(predictions, bins)
    floor, limit = twin.floor(), twin.limit(calibration_size=calibration_size)
    ece = float(binned.mean_absolute(top.gap, top.count))
    calibration = binned.brier_calibration(classwise, n)
    return Scores(
        accuracy=float(accuracy.mean()),
        nll=float(nll.mean()),
        brier=float(brier.mean()),
        brier_calibration=calibration,
        brier_refinement=float(brier.mean()) - calibration,
        ece=ece,
        esce=float(top.gap.sum()) / n,
        maximum_ce=float(binned.largest(top.gap, top.count)),
        adaptive_ece=float(binned.mean_absolute(mass.gap, mass.count)),
        classwise_ece=float(binned.mean_absolute(classwise.gap, classwise.count)),
        smooth_ece=min(1.0, float(smooth_ece_at(gaps, sigma))),
        ece_floor=floor.mean,
        ece_band=(floor.lower, floor.upper),
        ece_limit=limit,
        calibrated=ece <= limit,
        bins=bins,
        intervals=Intervals(
            accuracy=share_interval(float(accuracy.mean()), n),
            nll=mean_interval(nll),
            brier=mean_interval(brier),
            # the cells of all classes share n samples, so their mean square is 1 / C of the Brier score's part
            brier_calibration=_scaled(error_interval(classwise, binned.mean_square), c),
            ece=error_interval(top, binned.mean_absolute),
            esce=_signed_interval(predictions),
            maximum_ce=error_interval(top, binned.largest),
            adaptive_ece=error_interval(mass, binned.mean_absolute),
            classwise_ece=error_interval(classwise, binned.mean_absolute),
            smooth_ece=_smooth_interval(predictions, sigma),
        ),
    )


def _scaled(interval: Interval, factor: float) -> Interval:
    return factor * interval[0], factor * interval[1]


def _signed_interval(predictions: Predictions) -> tuple[float, float]:
    """Of mean confidence minus accuracy; a run of correct answers must not pass for certainty.

    The variance is the sample's or a calibrated model's, mean p (1 - p), whichever is larger.
    """
    gap, p = predictions.confidence - predictions.correct, predictions.confidence
    variance = max(float(gap.var()) if len(gap) > 1 else 0.0, float((p * (1 - p)).mean()))
    half = NORMAL * math.sqrt(variance / len(gap))
    return float(gap.mean()) - half, float(gap.mean()) + half


def _smooth_interval(predictions: Predictions, sigma: float) -> tuple[float, float]:
    """Of smECE_sigma at the bandwidth that was found, on a coarser grid."""
    cell = (predictions.confidence * COARSE).round().long()
    cells = binned.tally(cell, COARSE + 1, predictions.confidence, predictions.correct)
    place = cells.count.nonzero().squeeze(1)  # only cells that hold samples are simulated

    def statistic(gap: Tensor, count: Tensor) -> Tensor:
        grid = torch.zeros(*gap.shape[:-1], COARSE + 1, dtype=gap.dtype, device=gap.device)
        grid[..., place] = gap / count.sum()
        return smooth_ece_at(grid, max(sigma, 2 / COARSE))

    return error_interval(cells, statistic)
