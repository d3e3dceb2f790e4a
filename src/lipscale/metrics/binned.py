"""Calibration errors over bins: ECE, ESCE, maximum, adaptive and classwise, and the Brier score's two parts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lipscale.errors import UserError
from lipscale.metrics.predictions import Predictions

BINS = 15


@dataclass(frozen=True)
class Bins:
    """Sums over the cells of a partition of predictions; each (K,), float64.

    A cell holds `count` predictions of some probability, whose sum is `confidence`, and `correct` times what they
    predicted was true. gap = confidence - correct is what calibration metrics are functions of.
    """

    count: Tensor
    confidence: Tensor
    correct: Tensor

    @property
    def gap(self) -> Tensor:
        """Sum of confidence minus sum of correct: positive is over-confident."""
        return self.confidence - self.correct

    @property
    def mean_confidence(self) -> Tensor:
        """conf(B_m), zero for an empty bin."""
        return self.confidence / self.count.clamp(min=1)

    @property
    def accuracy(self) -> Tensor:
        """acc(B_m), zero for an empty bin."""
        return self.correct / self.count.clamp(min=1)

    def error(self, statistic: "Statistic") -> float:
        """A statistic of the gaps."""
        return float(statistic(self.gap, self.count))


# gaps (..., K) and counts (K,) -> (...): leading axes, so that simulated gaps (R, K) go through the same formula
Statistic = Callable[[Tensor, Tensor], Tensor]


def mean_absolute(gap: Tensor, count: Tensor) -> Tensor:
    """sum_m |B_m|/N |acc(B_m) - conf(B_m)|; over all classes' cells this is their mean, too."""
    return gap.abs().sum(-1) / count.sum()


def mean_signed(gap: Tensor, count: Tensor) -> Tensor:
    """sum_m |B_m|/N (conf(B_m) - acc(B_m))."""
    return gap.sum(-1) / count.sum()


def largest(gap: Tensor, count: Tensor) -> Tensor:
    """max_m |acc(B_m) - conf(B_m)| over the bins that hold samples."""
    return (gap.abs() / count.clamp(min=1)).amax(-1)


def mean_square(gap: Tensor, count: Tensor) -> Tensor:
    """sum_m |B_m|/N (acc(B_m) - conf(B_m))^2."""
    return (gap.square() / count.clamp(min=1)).sum(-1) / count.sum()


def ece(logits: Tensor, labels: Tensor, bins: int = BINS, *, probabilities: bool = False) -> float:
    """Expected calibration error, ``sum_m |B_m|/N |acc(B_m) - conf(B_m)|`` (Sec. 2.2)."""
    return equal_width(Predictions.of(logits, labels, probabilities=probabilities), bins).error(mean_absolute)


def esce(logits: Tensor, labels: Tensor, bins: int = BINS, *, probabilities: bool = False) -> float:
    """Expected signed calibration error, ``sum_m |B_m|/N (conf(B_m) - acc(B_m))``: positive is over-confident.

    Without the absolute value the sum telescopes to mean confidence minus accuracy, whatever the bins.
    """
    return equal_width(Predictions.of(logits, labels, probabilities=probabilities), bins).error(mean_signed)


def maximum_ce(logits: Tensor, labels: Tensor, bins: int = BINS, *, probabilities: bool = False) -> float:
    """Maximum calibration error, ``max_m |acc(B_m) - conf(B_m)|``: a bin with few samples can dominate it."""
    return equal_width(Predictions.of(logits, labels, probabilities=probabilities), bins).error(largest)


def adaptive_ece(logits: Tensor, labels: Tensor, bins: int = BINS, *, probabilities: bool = False) -> float:
    """ECE over bins of equal mass instead of equal width (Nguyen and O'Connor, 2015)."""
    return equal_mass(Predictions.of(logits, labels, probabilities=probabilities), bins).error(mean_absolute)


def classwise_ece(logits: Tensor, labels: Tensor, bins: int = BINS, *, probabilities: bool = False) -> float:
    """The mean over classes of the ECE of p_c against 1[y = c] (Kull et al., 2019)."""
    return by_class(Predictions.of(logits, labels, probabilities=probabilities), bins).error(mean_absolute)


class BrierParts(NamedTuple):
    """Brier score = calibration + refinement."""

    calibration: float
    refinement: float


def brier_parts(logits: Tensor, labels: Tensor, bins: int = BINS, *, probabilities: bool = False) -> BrierParts:
    """What the Brier score owes to miscalibration, ``sum_c sum_m |B_cm|/N (conf - acc)^2``, and the rest.

    The refinement is what no recalibration of single classes' bins can take away.
    """
    predictions = Predictions.of(logits, labels, probabilities=probabilities)
    calibration = brier_calibration(by_class(predictions, bins), len(predictions))
    return BrierParts(calibration, float(predictions.brier.mean()) - calibration)


def brier_calibration(cells: Bins, samples: int) -> float:
    """The calibration part from classwise cells: each sample is in one cell of every class."""
    return float(mean_square(cells.gap, cells.count) * cells.count.sum() / samples)


def reliability(logits: Tensor, labels: Tensor, bins: int = BINS, *, probabilities: bool = False) -> Bins:
    """The bins of the reliability diagram."""
    return equal_width(Predictions.of(logits, labels, probabilities=probabilities), bins)


def equal_width(predictions: Predictions, bins: int) -> Bins:
    """Bin m is (m / M, (m + 1) / M], so that confidence 1.0 falls into the last bin."""
    _check_bins(predictions, bins)
    return tally(_bin_of(predictions.confidence, bins), bins, predictions.confidence, predictions.correct)


def equal_mass(predictions: Predictions, bins: int) -> Bins:
    """Bin floor(M r / N), with r samples of smaller confidence; equal confidences stay together in one bin."""
    _check_bins(predictions, bins)
    ranks = torch.searchsorted(predictions.confidence.sort().values, predictions.confidence)
    return tally(ranks * bins // len(predictions), bins, predictions.confidence, predictions.correct)


def by_class(predictions: Predictions, bins: int) -> Bins:
    """Equal-width bins of p_c against 1[y = c], for every class c: C * M cells."""
    _check_bins(predictions, bins)
    p = predictions.probabilities
    classes = p.shape[1]
    first = bins * torch.arange(classes, device=p.device)
    cell = _bin_of(p, bins) + first
    count, confidence = (
        torch.bincount(cell.flatten(), weights, minlength=bins * classes).double() for weights in (None, p.flatten())
    )
    # only the true class of a sample counts as correct: one addition a sample, not C
    true_cell = cell.gather(1, predictions.labels.unsqueeze(1)).squeeze(1)
    return Bins(count, confidence, torch.bincount(true_cell, minlength=bins * classes).double())


def tally(cell: Tensor, cells: int, confidence: Tensor, correct: Tensor) -> Bins:
    """The sums over cells, for the cell of each sample."""
    count = torch.bincount(cell, minlength=cells).double()
    sums = (torch.bincount(cell, weights, minlength=cells) for weights in (confidence, correct))
    return Bins(count, *sums)


def _bin_of(p: Tensor, bins: int) -> Tensor:
    return torch.bucketize(p.contiguous(), bin_edges(bins).to(p.device)[1:-1])


def bin_edges(bins: int) -> Tensor:
    """0, 1/M, ..., 1, in float64."""
    return torch.arange(bins + 1, dtype=torch.float64) / bins


def bins_for(samples: int) -> int:
    """15, or as many as there are samples where those are fewer."""
    return min(BINS, samples)


def _check_bins(predictions: Predictions, bins: int) -> None:
    if not isinstance(bins, int) or bins < 1:
        raise UserError(f"expected a whole number of bins >= 1, got {bins!r}")
    if len(predictions) < bins:
        raise UserError(f"expected at least as many samples as bins, got {len(predictions)} samples and {bins} bins")
