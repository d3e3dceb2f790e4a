"""The optimal temperature, T* = argmin_T NLL(z / T), and how well a calibration set knows it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipscale.errors import UserError


@dataclass(frozen=True)
class Temperature:
    """A measured T* and the standard error of log T*; (inf, inf) where the logits are no better than chance."""

    value: float
    error: float

    def samples_for(self, error: float, *, measured_on: int) -> int:
        """How many calibration samples would bring the standard error down to this: s falls as 1 / sqrt(n)."""
        return math.ceil(measured_on * (self.error / error) ** 2)


@torch.no_grad()
def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """T* = 1 / beta*, with beta* = argmin_{beta > 0} Psi(beta) of App. B, by a bracketed Newton method in float64.

    Psi(beta) = mean_i [-beta z_{i,y_i} + LSE(beta z_i)] is strictly convex, so its derivative has one root. The
    degenerate cases of Assumption 2 have none and are returned as the limits they are: 0.0 where no sample is
    misclassified, inf where the logits are no better than chance.
    """
    z, size = _relative_to_the_truth(logits, labels)  # (N, C), in units of the largest |z_c - z_y|
    return _over(size, _minimiser(z, missed=0.0))


@torch.no_grad()
def measure_temperature(logits: Tensor, labels: Tensor) -> Temperature:
    """T* with half an error more than was seen, and the standard error of log T*.

    A calibration set is finite, so that it shows no error (or one too few) proves little. As in Platt's scaling, the
    labels are smoothed: each is wrong with probability 1 / (2 (n + 1)), evenly over the other classes, the estimate
    of Krichevsky and Trofimov for an event that n trials did not show. Psi stays strictly convex, and its minimiser is
    finite on separable sets too. The error is the curvature's, 1 / sqrt(sum_i Var_p[beta z_i]).
    """
    z, size = _relative_to_the_truth(logits, labels)
    beta = _minimiser(z, missed=0.5 / (len(z) + 1))
    variance = _slope(z, beta)[1]  # of one sample's logits; none where beta is 0: there nothing is known
    return Temperature(_over(size, beta), _over(1.0, beta * math.sqrt(len(z) * variance)))


def _minimiser(z: Tensor, *, missed: float) -> float:
    """The root of Psi'(beta) - missed * mean_{i, c != y} z_c, or its limits 0 and inf; z is relative to the truth."""
    pull = missed * float(z.sum() / (z.shape[0] * max(z.shape[1] - 1, 1)))
    if float(z.mean()) - pull >= 0:  # the slope at 0: no beta > 0 helps (conditions ii and iii)
        return 0.0
    if pull >= 0 and float(z.max()) <= 0:  # no class beats the true one anywhere: Psi falls for ever (condition i)
        return math.inf

    low, high = 0.0, 1.0
    while _slope(z, high)[0] - pull < 0:
        low, high = high, 2 * high
        if high == math.inf:
            return math.inf  # the only errors are smaller than float64 can tell from a tie
    beta = (low + high) / 2
    while True:
        slope, curvature = _slope(z, beta)
        slope -= pull
        low, high = (beta, high) if slope < 0 else (low, beta)
        newton = beta - slope / curvature if curvature > 0 else low
        previous, beta = beta, newton if low < newton < high else (low + high) / 2
        if abs(beta - previous) <= 1e-14 * beta or not low < beta < high:
            return beta


def _over(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.inf


def _relative_to_the_truth(logits: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """z_c - z_y in float64, divided by its largest magnitude, and that magnitude."""
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or len(logits) == 0:
        shapes = f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
        raise UserError(f"expected logits (N, C) and labels (N,) with N >= 1, got {shapes}")
    if not logits.isfinite().all():
        row = int((~logits.isfinite()).any(1).nonzero()[0])
        raise UserError(f"expected finite logits, got NaN or inf in row {row}")
    if labels.min() < 0 or labels.max() >= logits.shape[1]:
        raise UserError(f"expected labels in 0..{logits.shape[1] - 1}, got {int(labels.min())}..{int(labels.max())}")
    z = logits.double()
    z = z - z.gather(1, labels.long().unsqueeze(1))
    size = float(z.abs().max())
    return (z / size if size else z), size


def _slope(z: Tensor, beta: float) -> tuple[float, float]:
    """Psi'(beta) = mean E_p[z] (the truth is at 0) and Psi''(beta) = mean Var_p[z], p = softmax(beta z)."""
    p = torch.softmax(beta * z, 1)
    expected = (p * z).sum(1)
    variance = (p * (z - expected.unsqueeze(1)).square()).sum(1)
    return float(expected.mean()), float(variance.mean())
