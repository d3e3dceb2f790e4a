"""What ECE a perfectly calibrated model would show: noise has a floor, and a T* from few samples raises it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipscale.errors import UserError
from lipscale.metrics.binned import BINS, bin_edges, equal_width, mean_absolute
from lipscale.metrics.intervals import draw_correct
from lipscale.metrics.predictions import Predictions

PARTS = 32  # in how many parts a bin is simulated
# with 999 replicates the 25th and 975th smallest hold 95 % exactly: 950 of the 1000 places that a further draw can take
REPLICATES = 999


@dataclass(frozen=True)
class Floor:
    """The ECE of a perfectly calibrated model with these confidences at this sample size."""

    mean: float
    lower: float  # the 95 % band
    upper: float
    bin_lower: Tensor  # (bins,): the 95 % band of each bin's accuracy; NaN for an empty bin
    bin_upper: Tensor


def ece_floor(
    logits: Tensor,
    labels: Tensor,
    bins: int = BINS,
    *,
    probabilities: bool = False,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Floor:
    """Mean and 95 % band of the ECE when every correctness is drawn from its confidence."""
    predictions = Predictions.of(logits, labels, probabilities=probabilities)
    return CalibratedTwin(predictions, bins, replicates=replicates, seed=seed).floor()


def ece_limit(
    logits: Tensor,
    labels: Tensor,
    bins: int = BINS,
    *,
    calibration_size: int = 0,
    probabilities: bool = False,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> float:
    """The ECE that a calibrated model exceeds in 5 % of draws, where T* came from `calibration_size` samples."""
    predictions = Predictions.of(logits, labels, probabilities=probabilities)
    twin = CalibratedTwin(predictions, bins, replicates=replicates, seed=seed)
    return twin.limit(calibration_size=calibration_size)


class CalibratedTwin:
    """A perfectly calibrated model with the same confidences: what it would show, by simulation.

    Each bin is simulated in parts, so that confidences within it keep their differences.
    """

    def __init__(self, predictions: Predictions, bins: int, *, replicates: int = REPLICATES, seed: int = 0) -> None:
        if replicates < 1:
            raise UserError(f"expected replicates >= 1, got {replicates}")
        self.replicates, self.seed = replicates, seed
        self.predictions, self.bins = predictions, bins
        self.whole = equal_width(predictions, bins)
        edges = bin_edges(bins * PARTS)
        edges[::PARTS] = bin_edges(bins)  # parts refine bins, edge for edge
        self._part = torch.bucketize(predictions.confidence, edges[1:-1].to(predictions.confidence.device))
        self.count = torch.bincount(self._part, minlength=bins * PARTS).double()
        self.confidence = self._sums(predictions.confidence)

    def floor(self) -> Floor:
        """See `ece_floor`."""
        rate = self.confidence / self.count.clamp(min=1)
        gaps = self._simulate(rate.expand(self.replicates, -1))
        errors = mean_absolute(gaps, self.whole.count)
        accuracy = (self.whole.confidence - gaps) / self.whole.count  # NaN where a bin is empty
        (lower, upper), (bin_lower, bin_upper) = _band(errors), _band(accuracy)
        return Floor(float(errors.mean()), float(lower), float(upper), bin_lower, bin_upper)

    def limit(self, *, calibration_size: int = 0) -> float:
        """See `ece_limit`.

        Where T* is off by a factor e^delta, delta ~ N(0, s^2), the true confidences are p(e^delta z); they are followed
        to second order in delta.
        """
        if calibration_size < 0:
            raise UserError(f"expected calibration_size >= 0, got {calibration_size}")
        count = self.count.clamp(min=1)
        rate = (self.confidence / count).expand(self.replicates, -1)
        error = temperature_error(self.predictions, calibration_size) if calibration_size else 0.0
        if 0 < error < math.inf:  # logits without information do not depend on T at all
            generator = torch.Generator().manual_seed(self.seed)
            delta = torch.randn(self.replicates, 1, generator=generator, dtype=torch.float64).to(count.device)
            delta *= error
            first, second = (self._sums(d) / count for d in _derivatives(self.predictions))
            rate = rate + delta * first + delta.square() / 2 * second
        errors = mean_absolute(self._simulate(rate), self.whole.count).sort().values
        return float(errors[min(math.ceil(0.95 * (self.replicates + 1)), self.replicates) - 1])

    def _sums(self, values: Tensor) -> Tensor:
        return torch.bincount(self._part, values, minlength=self.bins * PARTS)

    def _simulate(self, rate: Tensor) -> Tensor:
        """Gaps of whole bins, (R, bins), with correctness drawn part by part at these rates (R, bins * PARTS)."""
        filled = self.count > 0  # most parts are empty, and need no draw
        correct = torch.zeros_like(rate)
        correct[:, filled] = draw_correct(self.count[filled], rate[:, filled].clamp(0, 1), self.seed)
        # counts are exact, and the confidences are summed as the measured ones are: what is equal is equal to the bit
        return self.whole.confidence - correct.view(len(rate), self.bins, PARTS).sum(2)


def temperature_error(predictions: Predictions, samples: int) -> float:
    """The standard error of log T* fitted on so many samples, s = 1 / sqrt(n mean Var_p[z]), for a calibrated model.

    n mean Var_p[z] is the curvature of the likelihood in log T at T* = 1.
    """
    information = float(predictions.moments[1].mean())
    return 1 / math.sqrt(samples * information) if information > 0 else math.inf


def _derivatives(predictions: Predictions) -> tuple[Tensor, Tensor]:
    """dp/d delta = p (z - E z) and d2p/d delta2 = p ((z - E z)^2 - Var z) of the top class, at delta = 0. (N,)."""
    mean, variance = predictions.moments
    p = predictions.confidence
    above = p.log() - mean
    return p * above, p * (above.square() - variance)


def _band(values: Tensor) -> tuple[Tensor, Tensor]:
    """The order statistics that hold 95 % of further draws, along the replicates."""
    ordered = values.sort(0).values
    out = max(1, math.floor(0.025 * (len(values) + 1)))
    return ordered[out - 1], ordered[-out]
