"""The optimal temperature, T* = argmin_T NLL(z / T), how well few samples know it, and the test of T = 1."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipscale.calibration.posterior import BLOCK, posterior_of, predictive_of
from lipscale.errors import UserError

CHANCE_EXCLUDED = 1.96  # how many standard errors must lie between 1 / T and 0 for T to have an upper limit


@dataclass(frozen=True)
class Temperature:
    """A measured T*, the standard error of log T*, and T*'s 95 % interval.

    Value and error are inf where the logits are no better than chance. Where chance cannot be excluded, the interval
    ends at inf.
    """

    value: float
    error: float
    lower: float = 0.0
    upper: float = math.inf

    def samples_for(self, error: float, *, measured_on: int) -> int:
        """How many calibration samples would bring the standard error down to this, if s falls as 1 / sqrt(n).

        It falls more slowly where hardly any sample is misclassified: then this many is only the least that it takes.
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
    return _over(size, _minimiser(z, start=size))


@torch.no_grad()
def measure_temperature(logits: Tensor, labels: Tensor) -> Temperature:
    """T* with as little bias as few samples allow, and how well they know it.

    A calibration set is finite, so that it shows no error (or one too few) proves little, and the plain minimiser of
    the likelihood is too small on average, or 0. This is the posterior mean of log T under the density l(T) I(T), where
    l is the likelihood and I = sum_i Var_p[z_i / T], the information on log T. With this prior the posterior mean has
    no bias of order 1 / n (docs/FEEDBACK.md), and is finite on separable sets, too.

    Args:
        logits: Of a calibration set, (N, C).
        labels: Its true classes, (N,).

    Returns:
        T*, the standard error of log T* and T*'s 95 % interval.

    Example:
        >>> import torch, lipscale
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> found = lipscale.measure_temperature(logits, torch.tensor([0, 1, 0]))  # no error: the plain minimiser is 0
        >>> 0 < found.lower < found.value < found.upper
        True
    """
    z, size = _relative_to_the_truth(logits, labels)
    if size == 0 or float(z.mean()) >= 0:  # the likelihood falls from beta = 0 on: no better than chance
        return Temperature(math.inf, math.inf)
    found = posterior_of(z)
    return Temperature(
        size * math.exp(-found.mean),
        # near chance the likelihood hardly tells beta from 0, and log T may be anything
        max(found.deviation, _over(1.0, found.beyond_chance)),
        size * math.exp(-found.upper),
        size * math.exp(-found.lower) if found.beyond_chance >= CHANCE_EXCLUDED else math.inf,
    )


@torch.no_grad()
def cautious_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T of the least expected log-loss, given what these samples know: for a T* that few of them decide.

    Args:
        logits: Of a calibration set, (N, C).
        labels: Its true classes, (N,).

    Returns:
        T, mostly above the value of `measure_temperature`; inf where the logits are no better than chance.

    Example:
        >>> logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 0])
        >>> cautious_temperature(logits, labels) > measure_temperature(logits, labels).value
        True
    """
    z, size = _relative_to_the_truth(logits, labels)
    if size == 0 or float(z.mean()) >= 0:
        return math.inf
    return size * math.exp(-predictive_of(z))


@torch.no_grad()
def temperature_p_value(logits: Tensor, labels: Tensor) -> float:
    """The likelihood-ratio test of T = 1: a small value says that another temperature fits the labels better.

    2 (l(T*) - l(1)), with l the log-likelihood of the labels, has one degree of freedom.

    Args:
        logits: Of samples that T was not fitted to, (N, C).
        labels: Their true classes, (N,).

    Returns:
        The p-value, between 0 and 1.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> round(temperature_p_value(logits, torch.tensor([0, 1, 1])), 2)
        0.81
    """
    z, size = _relative_to_the_truth(logits, labels)
    beta = _minimiser(z.clone(), start=size)
    # where no sample is misclassified, T falls to 0, and only ties with the truth are left
    best = -float((z == 0).sum(0).log().sum()) if math.isinf(beta) else _log_likelihood(z, beta)
    ratio = 2 * (best - _log_likelihood(z, size))
    return math.erfc(math.sqrt(max(ratio, 0.0) / 2))  # the tail of chi-square with one degree of freedom


def _log_likelihood(z: Tensor, beta: float) -> float:
    """sum_i log softmax(beta z_i) of the truth, which is at 0; z (C, N) is relative to it."""
    return -float((beta * z).logsumexp(0).sum())


def _minimiser(z: Tensor, *, start: float) -> float:
    """The root beta of Psi'(beta), or its limits 0 and inf. z (C, N) is relative to the truth, and is overwritten."""
    if start == 0 or float(z.mean()) >= 0:  # the slope at 0: no beta > 0 helps (conditions ii and iii)
        return 0.0
    top = z.amax(0)  # (N,)
    if float(top.max()) <= 0:  # no class beats the true one anywhere: Psi falls for ever (condition i)
        return math.inf

    z -= top  # exp(beta z) is now safe for every beta, and sums to 1 at least
    low, high, beta, stride = 0.0, math.inf, start, math.inf  # from T = 1, where a feedback loop is at rest
    while True:
        slope, curvature = _slope(z, top, beta)
        low, high = (beta, high) if slope < 0 else (low, beta)
        newton = beta - slope / curvature if curvature > 0 else math.inf
        if abs(newton - beta) <= 1e-10 * beta:
            return newton  # convergence is quadratic: what is left of such an error is rounding
        # a Newton step must stay in the bracket and halve the step before; else the bracket is halved, or opened
        if low < newton < min(high, 10 * beta) and abs(newton - beta) < stride / 2:
            target = newton
        else:
            target = 10 * beta if high == math.inf else (low + high) / 2
        stride, beta = abs(target - beta), target
        if beta == math.inf:
            return math.inf  # the only errors are smaller than float64 can tell from a tie
        if not low < beta < high:  # neighbouring numbers
            return beta


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
