"""The optimal temperature, T* = argmin_T NLL(z / T), and how well a calibration set knows it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipscale.errors import UserError

BLOCK = 4096


@dataclass(frozen=True)
class Temperature:
    """A measured T* and the standard error of log T*; (inf, inf) where the logits are no better than chance."""

    value: float
    error: float

    def samples_for(self, error: float, *, measured_on: int) -> int:
        """How many calibration samples would bring the standard error down to this, if s falls as 1 / sqrt(n).

        It falls more slowly where hardly any sample is misclassified: then the half error that is assumed shrinks with
        n, and this many is only the least that it takes.
        """
        return math.ceil(measured_on * (self.error / error) ** 2)


@torch.no_grad()
def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """T* = 1 / beta*, with beta* = argmin_{beta > 0} Psi(beta) of App. B, by a bracketed Newton method in float64.

    Psi(beta) = mean_i [-beta z_{i,y_i} + LSE(beta z_i)] is strictly convex, so its derivative has one root. The
    degenerate cases of Assumption 2 have none and are returned as the limits they are: 0.0 where no sample is
    misclassified, inf where the logits are no better than chance.

    Args:
        logits: (N, C), in any precision.
        labels: The true classes, (N,).

    Returns:
        T*, which may be 0.0 or inf.

    Example:
        >>> import torch, lipscale
        >>> logits, labels = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0, 0, 1])
        >>> round(lipscale.fit_temperature(logits, labels), 4)  # three of four are right: the odds are 3
        1.8205
    """
    z, size = _relative_to_the_truth(logits, labels)  # (C, N), in units of the largest |z_c - z_y|
    return _over(size, _minimiser(z, start=size, missed=0.0)[0])


@torch.no_grad()
def measure_temperature(logits: Tensor, labels: Tensor) -> Temperature:
    """T* with half an error more than was seen, and the standard error of log T*.

    A calibration set is finite, so that it shows no error (or one too few) proves little. As in Platt's scaling, the
    labels are smoothed: each is wrong with probability 1 / (2 (n + 1)), evenly over the other classes, the estimate
    of Krichevsky and Trofimov for an event that n trials did not show. Psi stays strictly convex, and its minimiser is
    finite on separable sets too. The error is the curvature's, 1 / sqrt(sum_i Var_p[beta z_i]).
    """
    z, size = _relative_to_the_truth(logits, labels)
    samples = z.shape[1]
    beta, variance = _minimiser(z, start=size, missed=0.5 / (samples + 1))
    return Temperature(_over(size, beta), _over(1.0, beta * math.sqrt(samples * variance)))


def _minimiser(z: Tensor, *, start: float, missed: float) -> tuple[float, float]:
    """The root beta of Psi'(beta) - missed * mean_{i, c != y} z_c, or its limits 0 and inf; and Psi'' there.

    z (C, N) is relative to the truth, and is overwritten.
    """
    classes, samples = z.shape
    pull = missed * float(z.sum()) / (samples * max(classes - 1, 1))
    if start == 0 or float(z.mean()) - pull >= 0:  # the slope at 0: no beta > 0 helps (conditions ii and iii)
        return 0.0, 0.0
    top = z.amax(0)  # (N,)
    if pull >= 0 and float(top.max()) <= 0:  # no class beats the true one anywhere: Psi falls for ever (condition i)
        return math.inf, 0.0

    z -= top  # exp(beta z) is now safe for every beta, and sums to 1 at least
    low, high, beta, stride = 0.0, math.inf, start, math.inf  # from T = 1, where a feedback loop is at rest
    while True:
        slope, curvature = _slope(z, top, beta)
        slope -= pull
        low, high = (beta, high) if slope < 0 else (low, beta)
        newton = beta - slope / curvature if curvature > 0 else math.inf
        if abs(newton - beta) <= 1e-10 * beta:
            return newton, curvature  # convergence is quadratic: what is left of such an error is rounding
        # a Newton step must stay in the bracket and halve the step before; else the bracket is halved, or opened
        if low < newton < min(high, 10 * beta) and abs(newton - beta) < stride / 2:
            target = newton
        else:
            target = 10 * beta if high == math.inf else (low + high) / 2
        stride, beta = abs(target - beta), target
        if beta == math.inf:
            return math.inf, 0.0  # the only errors are smaller than float64 can tell from a tie
        if not low < beta < high:  # neighbouring numbers
            return beta, curvature


def _over(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.inf


def _relative_to_the_truth(logits: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """z_c - z_y in float64, (C, N), divided by its largest magnitude, and that magnitude."""
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or len(logits) == 0:
        shapes = f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
        raise UserError(f"expected logits (N, C) and labels (N,) with N >= 1, got {shapes}")
    if not logits.isfinite().all():
        row = int((~logits.isfinite()).any(1).nonzero()[0])
        raise UserError(f"expected finite logits, got NaN or inf in row {row}")
    if labels.min() < 0 or labels.max() >= logits.shape[1]:
        raise UserError(f"expected labels in 0..{logits.shape[1] - 1}, got {int(labels.min())}..{int(labels.max())}")
    # samples last: sums over classes then run over whole vectors of samples
    z = logits.T.double().contiguous()
    z = z - z.gather(0, labels.long().unsqueeze(0))
    size = float(z.abs().max())
    return (z / size if size else z), size


def _slope(z: Tensor, top: Tensor, beta: float) -> tuple[float, float]:
    """Psi'(beta) = mean E_p[z] (the truth is at 0) and Psi''(beta) = mean Var_p[z], p = softmax(beta z)."""
    slope = curvature = torch.zeros((), dtype=z.dtype, device=z.device)
    # a block of samples stays in the processor's cache from the first operation to the last
    for block, largest in zip(z.split(BLOCK, 1), top.split(BLOCK), strict=True):
        weight = (beta * block).exp_()  # (C, B)
        total = weight.sum(0)
        mean = weight.mul_(block).sum(0) / total
        square = weight.mul_(block).sum(0) / total
        slope = slope + (mean + largest).sum()
        curvature = curvature + (square - mean.square()).sum()
    return float(slope) / len(top), float(curvature) / len(top)
