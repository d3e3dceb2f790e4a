"""The optimal temperature, T* = argmin_T NLL(z / T)."""

import torch
from torch import Tensor

from lipscale.errors import UserError


@torch.no_grad()
def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """T* = 1 / beta*, with beta* = argmin_{beta > 0} Psi(beta) of App. B, by a bracketed Newton method in float64.

    Psi(beta) = mean_i [-beta z_{i,y_i} + LSE(beta z_i)] is strictly convex, so its derivative has one root. The
    degenerate cases of Assumption 2 have none and are returned as the limits they are: 0.0 where no sample is
    misclassified, inf where the logits are no better than chance.
    """
    z, size = _relative_to_the_truth(logits, labels)  # (N, C), in units of the largest |z_c - z_y|
    if size == 0 or float(z.mean()) >= 0:  # Psi'(0) >= 0: no beta > 0 helps (conditions ii and iii)
        return float("inf")
    if float(z.max()) <= 0:  # no class beats the true one anywhere: Psi falls for ever (condition i)
        return 0.0

    low, high = 0.0, 1.0
    while _slope(z, high)[0] < 0:
        low, high = high, 2 * high
        if high == float("inf"):
            return 0.0  # the only errors are smaller than float64 can tell from a tie
    beta = (low + high) / 2
    while True:
        slope, curvature = _slope(z, beta)
        low, high = (beta, high) if slope < 0 else (low, beta)
        newton = beta - slope / curvature if curvature > 0 else low
        previous, beta = beta, newton if low < newton < high else (low + high) / 2
        if abs(beta - previous) <= 1e-14 * beta or not low < beta < high:
            return size / beta


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
