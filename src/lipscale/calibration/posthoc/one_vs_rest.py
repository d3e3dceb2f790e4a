"""Each class's probability by itself, against the rest, then normalised: isotonic regression, histograms, BBQ."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import betaln
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

from lipscale.calibration.posthoc.calibrator import Calibrator
from lipscale.errors import UserError

# the least probability before normalisation: what a calibration set has not seen is rare, but it is not impossible
FLOOR = 1e-6
TINY = 1e-12  # how near to 0 and 1 the middle of a bin may be

Map = Callable[[np.ndarray], np.ndarray]


class OneVsRest(Calibrator):
    """p_c -> q_c / sum_k q_k with q_c = max(map_c(p_c), FLOOR); a new one writes the map of one class.

    `transform` returns log-probabilities.
    """

    _maps: list[Map]

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        p, y = logits.softmax(1).cpu().numpy(), labels.cpu().numpy()
        self._maps = [self._fit_class(p[:, c], (y == c).astype(np.float64)) for c in range(p.shape[1])]

    def _transform(self, logits: Tensor) -> Tensor:
        p = logits.softmax(1).cpu().numpy()
        q = np.stack([apply(p[:, c]) for c, apply in enumerate(self._maps)], axis=1)  # (N, C)
        q = np.maximum(q, FLOOR)
        return torch.from_numpy(np.log(q / q.sum(1, keepdims=True))).to(logits)

    @abstractmethod
    def _fit_class(self, p: np.ndarray, hit: np.ndarray) -> Map:
        """The map of one class, from its probabilities (N,) and whether it was the true one (N,)."""


class IsotonicCalibration(OneVsRest):
    """The monotone map of each class's probability with the least squared error (Zadrozny and Elkan, 2002)."""

    def _fit_class(self, p: np.ndarray, hit: np.ndarray) -> Map:
        # beyond the probabilities that were seen, the nearest one's value
        found = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(p, hit)
        return lambda values: found.predict(values) if len(values) else values


class HistogramBinning(OneVsRest):
    """q_c = the share of class c among the calibration samples in p_c's bin (Zadrozny and Elkan, 2001).

    The bins (lower, upper] have equal width, or with `equal_mass` equally many samples. An empty bin keeps its middle.
    """

    def __init__(self, *, bins: int = 15, equal_mass: bool = False) -> None:
        if bins < 1:
            raise UserError(f"expected at least 1 bin, got {bins}")
        self.bins, self.equal_mass = bins, equal_mass

    def _fit_class(self, p: np.ndarray, hit: np.ndarray) -> Map:
        samples = Sorted.of(p, hit)
        edges = samples.quantiles(self.bins) if self.equal_mass else np.linspace(0, 1, self.bins + 1)[1:-1]
        total, hits, middle = samples.counts(edges)
        share = np.where(total > 0, hits / np.maximum(total, 1), middle)
        return lambda values: share[np.searchsorted(edges, values)]


class BayesianBinning(OneVsRest):
    """The mean over histograms of 1, 2, ... bins of equal mass, by their evidence (BBQ; Naeini et al., 2015).

    A bin's share has the prior Beta(N m / B, N (1 - m) / B), with m the middle of the bin, B the number of bins and
    N = `strength`. The evidence of a histogram is then a product of ratios of beta functions, and the share's posterior
    mean is never 0. B runs from n^(1/3) / `spread` to n^(1/3) * `spread`.
    """

    def __init__(self, *, strength: float = 2.0, spread: float = 10.0) -> None:
        self.strength, self.spread = strength, spread

    def _fit_class(self, p: np.ndarray, hit: np.ndarray) -> Map:
        root = len(p) ** (1 / 3)
        most = max(1, min(int(root * self.spread), len(p)))
        numbers = range(min(most, max(1, int(root / self.spread))), most + 1)
        samples = Sorted.of(p, hit)
        models = [self._histogram(samples, bins) for bins in numbers]
        evidence = np.array([log_evidence for _, _, log_evidence in models])
        weight = np.exp(evidence - evidence.max())
        weight /= weight.sum()
        chosen = [(w, edges, mean) for w, (edges, mean, _) in zip(weight, models, strict=True) if w > TINY]

        def apply(values: np.ndarray) -> np.ndarray:
            return sum((w * mean[np.searchsorted(edges, values)] for w, edges, mean in chosen), np.zeros_like(values))

        return apply

    def _histogram(self, samples: "Sorted", bins: int) -> tuple[np.ndarray, np.ndarray, float]:
        """The edges, the posterior mean of each bin, and the log-evidence of all."""
        edges = samples.quantiles(bins)
        total, hits, middle = samples.counts(edges)
        strength, middle = self.strength / len(total), middle.clip(TINY, 1 - TINY)
        yes, no = strength * middle, strength * (1 - middle)
        log_evidence = float((betaln(hits + yes, total - hits + no) - betaln(yes, no)).sum())
        return edges, (hits + yes) / (total + strength), log_evidence


@dataclass(frozen=True)
class Sorted:
    """A class's probabilities in order, so that a histogram costs a look-up for each of its edges."""

    p: np.ndarray  # (N,)
    hits_up_to: np.ndarray  # (N + 1,): among the first 0, 1, ..., N

    @classmethod
    def of(cls, p: np.ndarray, hit: np.ndarray) -> "Sorted":
        """Sort the samples."""
        order = np.argsort(p, kind="stable")
        return cls(p[order], np.concatenate(([0.0], np.cumsum(hit[order]))))

    def quantiles(self, bins: int) -> np.ndarray:
        """The inner edges of bins of equal mass; equal values share a bin, so there may be fewer."""
        upper = np.arange(1, bins) * len(self.p) // bins
        upper = upper[upper > 0]
        return np.unique((self.p[upper - 1] + self.p[upper]) / 2)

    def counts(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The samples and the hits in each bin between 0, the inner edges and 1, and the bins' middles."""
        ends = np.concatenate(([0], np.searchsorted(self.p, edges, side="right"), [len(self.p)]))
        borders = np.concatenate(([0.0], edges, [1.0]))
        return np.diff(ends), np.diff(self.hits_up_to[ends]), (borders[:-1] + borders[1:]) / 2
