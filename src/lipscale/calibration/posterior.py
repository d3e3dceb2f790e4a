"""The posterior of log beta, beta = 1 / T, by quadrature: what `measure_temperature` is read from."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK = 4096
CLOSE = 0.3  # how near to the mode the quadrature is centred, in standard deviations
LONGEST_STEP = 1.0  # in log beta
NEGLIGIBLE = 12.0  # the log density below its largest from which on the rest is left out
FARTHEST = 2.5  # between two nodes, in standard deviations
THINNED = 16  # of many samples every so many say where to begin
FINE = 32  # points between two nodes
COARSE = 8  # so many of them together are one point for what is smooth
TAIL = 0.025


@dataclass(frozen=True)
class Posterior:
    """The mean, standard deviation and 95 % interval of log beta, and how clearly beta = 0 is excluded."""

    mean: float
    deviation: float
    lower: float
    upper: float
    beyond_chance: float  # sqrt(2 (l(beta*) - l(0))): as many standard errors lie between beta and 0


def posterior_of(z: Tensor) -> Posterior:
    """The posterior under the density l(beta) I(beta) over log beta, for z (C, N) relative to the truth.

    I = sum_i Var_p[beta z_i] is the information on log beta, and stands where Jeffreys' prior has its root.
    """
    density = _Density(z)
    nodes = density.nodes()
    theta, weight = _between(nodes)
    mean = float(weight @ theta)
    cumulative = weight.cumsum() - weight / 2
    lower, upper = (float(np.interp(q, cumulative, theta)) for q in (TAIL, 1 - TAIL))
    best = max(node.likelihood for node in nodes)
    return Posterior(
        mean,
        math.sqrt(float(weight @ (theta - mean) ** 2)),
        lower,
        upper,
        math.sqrt(2 * max(best - density.guessing, 0.0)),
    )


def predictive_of(z: Tensor) -> float:
    """The log beta of the least expected log-loss under the posterior, for z (C, N) relative to the truth.

    E KL(softmax(b z) || softmax(beta z)), with b from the posterior, is least where the softmax is nearest to the mean
    of softmax(b z), the posterior predictive: where sum_i E_p[z_i] is the same of both. It mostly lies below the
    posterior mean, since to claim too much costs more than to claim too little, and near it where many samples know
    beta.
    """
    theta, weight = _between(_Density(z).nodes())
    theta, weight = theta[COARSE // 2 :: COARSE], np.add.reduceat(weight, np.arange(0, len(weight), COARSE))
    means = [float(((math.exp(t) * z).softmax(0) * z).sum()) for t in theta]
    wanted = float(weight @ means)
    # the sum rises with beta: the root lies between its neighbours in `means`, where it is close to linear
    return float(np.interp(wanted, means, theta))


@dataclass(frozen=True)
class _Node:
    """The posterior at theta = log beta: its log density and slope there, the likelihood and the information."""

    theta: float
    density: float
    slope: float
    likelihood: float
    information: float


class _Density:
    """The log density l(theta) + log I(theta) over theta = log beta, for z (C, N) relative to the truth."""

    def __init__(self, z: Tensor) -> None:
        self.top = z.amax(0)
        self.z = z - self.top  # exp(beta z) is safe for every beta, and sums to 1 at least
        self.guessing = -z.shape[1] * math.log(z.shape[0])  # the log-likelihood at beta = 0
        # where Newton's first step from beta = 0 ends: it scales as the logits do
        self.start = math.log(-float(z.mean()) / float(z.var(0, correction=0).mean()))
        if len(self.top) > THINNED * BLOCK and float(z[:, ::THINNED].mean()) < 0:
            self.start = _Density(z[:, ::THINNED].contiguous())._near_mode().theta

    def at(self, theta: float) -> _Node:
        """One pass over the samples."""
        beta = math.exp(theta)
        likelihood, mean, variance, third = _moments(self.z, self.top, beta)
        if not variance > 0:  # all of it underflows: beta is far too large
            return _Node(theta, -math.inf, -math.inf, likelihood, 0.0)
        information = beta**2 * variance
        slope = -beta * mean + 2 + beta * third / variance  # d/d theta of l, and of log (beta^2 V)
        return _Node(theta, likelihood + math.log(information), slope, likelihood, information)

    def nodes(self) -> list[_Node]:
        """Nodes one to two and a half standard deviations apart, in order, over all of the density that counts."""
        middle = self._near_mode()
        # the more samples, the nearer the density is to a normal one, whose logarithm a cubic follows at any distance
        apart = min(max(middle.information**0.25 / 3, 1.0), FARTHEST)
        step = min(apart / math.sqrt(middle.information), LONGEST_STEP)
        found = [middle]
        for side in (-1, 1):
            node, highest = middle, max(n.density for n in found)
            while node.density > highest - NEGLIGIBLE:
                node = self.at(node.theta + side * step)
                if math.isinf(node.density):
                    break
                found.append(node)
                highest = max(highest, node.density)
        return sorted(found, key=lambda node: node.theta)

    def _near_mode(self) -> _Node:
        """Fisher scoring, kept in a bracket; a fraction of a standard deviation is near enough."""
        low, high, theta = -math.inf, math.inf, self.start
        while True:
            node = self.at(theta)
            low, high = (theta, high) if node.slope > 0 else (low, theta)
            step = node.slope / node.information if node.information > 0 else -math.inf
            if abs(step) * math.sqrt(node.information) < CLOSE or high - low < 1e-9:
                return node
            target = theta + min(max(step, -LONGEST_STEP), LONGEST_STEP)
            theta = target if low < target < high else (low + high) / 2


def _moments(z: Tensor, top: Tensor, beta: float) -> tuple[float, float, float, float]:
    """The log-likelihood at beta, and the sums of E_p[z], Var_p[z] and the third central moment."""
    sums = torch.zeros(4, dtype=z.dtype, device=z.device)
    # a block of samples stays in the processor's cache from the first operation to the last
    for block, largest in zip(z.split(BLOCK, 1), top.split(BLOCK), strict=True):
        weight = (beta * block).exp_()  # (C, B)
        total = weight.sum(0)
        first, second, third = (weight.mul_(block).sum(0) / total for _ in range(3))
        variance = second - first.square()
        skew = third - 3 * first * variance - first**3
        parts = (-beta * largest - total.log(), first + largest, variance, skew)
        sums += torch.stack([part.sum() for part in parts])
    likelihood, mean, variance, skew = sums.tolist()
    return likelihood, mean, variance, skew


def _between(nodes: list[_Node]) -> tuple[np.ndarray, np.ndarray]:
    """Points between the nodes, and weights that sum to one: the cubic through values and slopes of the log density."""
    theta, value, slope = (np.array([getattr(n, name) for n in nodes]) for name in ("theta", "density", "slope"))
    step = np.diff(theta)[:, None]  # (K - 1, 1)
    t = np.arange(FINE) / FINE
    cubic = (
        value[:-1, None] * (1 + 2 * t) * (1 - t) ** 2
        + value[1:, None] * t**2 * (3 - 2 * t)
        + step * (slope[:-1, None] * t * (1 - t) ** 2 - slope[1:, None] * t**2 * (1 - t))
    )
    weight = (step * np.exp(cubic - value.max())).ravel()
    return (theta[:-1, None] + step * t).ravel(), weight / weight.sum()
