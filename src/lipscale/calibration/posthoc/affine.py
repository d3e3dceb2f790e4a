"""Affine maps of the logits: vector and matrix scaling (Guo et al., 2017), Dirichlet calibration (Kull et al., 2019).

All three are multinomial logistic regressions, u = W x + b, so the mean NLL is convex in (W, b) and is solved to its
optimum. The features x are the logits (or log-probabilities) divided by T*. Then the search starts from temperature
scaling, W = I and b = 0, and the unit of the logits does not matter.
"""

import math
from abc import abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax
from torch import Tensor

from lipscale.calibration.posthoc.calibrator import Calibrator, positive_temperature
from lipscale.errors import UserError

# of the pull towards temperature scaling: with it there is an optimum, and only one, also where a class is missing
# from the calibration set or a hyperplane separates it; it changes the NLL by less than 1e-4 elsewhere
RIDGE = 1e-6
GRADIENT = 1e-8  # the largest slope left at the optimum
ODIR = (1e4, 1e3, 1e2, 1e1, 1.0, 0.1)  # from hardly a weight off the diagonal to hardly a penalty
FOLDS, ROUGH_GRADIENT = 3, 1e-4  # of the cross-validation that chooses among them


class AffineCalibrator(Calibrator):
    """u = W x + b with the minimum of mean NLL + penalty; a new one says what x is and what is penalised."""

    weight: Tensor  # W, (C, C)
    bias: Tensor  # b, (C,)
    scale: float  # the features are multiplied by this: 1 / T*

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        temperature = positive_temperature(logits, labels)
        hopeless = math.isinf(temperature)  # no better than chance: only the biases can help at first
        self.scale = 1 / (float(logits.abs().max()) or 1.0) if hopeless else 1 / temperature
        start = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device) * (not hopeless)
        self._choose_penalty(self._scaled(logits), labels, start)
        self.weight, self.bias = regression(self._scaled(logits), labels, start, *self._penalty(start))

    def _choose_penalty(self, features: Tensor, labels: Tensor, start: Tensor) -> None:
        """Settle what `_penalty` leaves open, before the fit."""

    def _transform(self, logits: Tensor) -> Tensor:
        return self._scaled(logits) @ self.weight.T + self.bias

    def _scaled(self, logits: Tensor) -> Tensor:
        return self.scale * self._features(logits)

    def _features(self, logits: Tensor) -> Tensor:
        """The logits around their mean: the same for all logits with the same softmax."""
        return logits - logits.mean(1, keepdim=True)

    @abstractmethod
    def _penalty(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """What the squares of W - start, (C, C), and of b, (C,), cost; inf for a weight that does not move."""


class VectorScaling(AffineCalibrator):
    """u_c = w_c z_c + b_c: a weight and a bias for each class."""

    def _penalty(self, start: Tensor) -> tuple[Tensor, Tensor]:
        fixed = torch.full_like(start, math.inf).fill_diagonal_(RIDGE)
        return fixed, torch.full_like(start[0], RIDGE)


class MatrixScaling(AffineCalibrator):
    """u = W z + b: every class listens to every other.

    `odir` is lambda of the penalty lambda (mean of W_ij^2, i != j) + lambda (mean of b_j^2) on off-diagonals and
    intercepts (ODIR; Kull et al., 2019). Without it C^2 weights over-fit most calibration sets. Left out, it is chosen
    among ODIR by cross-validation within the calibration set, as there.
    """

    def __init__(self, *, odir: float | None = None) -> None:
        if odir is not None and not 0 <= odir < math.inf:
            raise UserError(f"expected odir >= 0, got {odir}")
        self.odir, self.chosen_odir = odir, odir

    def _choose_penalty(self, features: Tensor, labels: Tensor, start: Tensor) -> None:
        if self.odir is not None:
            return
        best, best_odir = math.inf, ODIR[0]
        fold = torch.arange(len(labels), device=labels.device) % FOLDS
        for odir in ODIR if len(labels) >= FOLDS else ():  # with fewer there is nothing to choose by: the safest
            self.chosen_odir, loss = odir, 0.0
            for held_out in range(FOLDS):
                kept, out = fold != held_out, fold == held_out
                weight, bias = regression(
                    features[kept], labels[kept], start, *self._penalty(start), gradient=ROUGH_GRADIENT
                )
                loss += float(F.cross_entropy(features[out] @ weight.T + bias, labels[out], reduction="sum"))
            if loss > best:  # freer still would over-fit more, and weak penalties take the longest
                break
            best, best_odir = loss, odir
        self.chosen_odir = best_odir

    def _penalty(self, start: Tensor) -> tuple[Tensor, Tensor]:
        c, odir = len(start), self.chosen_odir or 0.0
        off_diagonal = torch.full_like(start, RIDGE + odir / (c * (c - 1))).fill_diagonal_(RIDGE)
        return off_diagonal, torch.full_like(start[0], RIDGE + odir / c)


class DirichletCalibration(MatrixScaling):
    """u = W log p + b: exact where log-probabilities have a Dirichlet distribution in every class; ODIR as above."""

    def _features(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(1)


def regression(
    features: Tensor,
    labels: Tensor,
    start: Tensor,
    weight_penalty: Tensor,
    bias_penalty: Tensor,
    *,
    gradient: float = GRADIENT,
) -> tuple[Tensor, Tensor]:
    """W (C, C) and b (C,) at the minimum of mean_i NLL(W x_i + b, y_i) + sum penalty (W - start)^2 + sum penalty b^2.

    By a trust-region Newton method with exact products of the Hessian. A bias is the weight of a feature that is 1.
    """
    n, c = features.shape
    x = F.pad(features, (0, 1), value=1.0).cpu().numpy()  # (N, C + 1)
    y, rows = labels.cpu().numpy(), np.arange(n)
    origin = F.pad(start, (0, 1)).cpu().numpy()  # (C, C + 1)
    penalty = torch.cat((weight_penalty, bias_penalty.unsqueeze(1)), 1).cpu().numpy()
    free = np.isfinite(penalty)
    cost = np.where(free, penalty, 0.0)

    def spread(values: np.ndarray) -> np.ndarray:  # the free ones in their places
        whole = np.zeros_like(origin)
        whole[free] = values
        return whole

    def value_and_slope(moved: np.ndarray) -> tuple[float, np.ndarray]:
        off = spread(moved)
        u = x @ (origin + off).T
        residual = softmax(u, axis=1)
        residual[rows, y] -= 1
        value = (logsumexp(u, axis=1) - u[rows, y]).mean() + (cost * off**2).sum()
        return value, (residual.T @ x / n + 2 * cost * off)[free]

    def curvature(moved: np.ndarray, along: np.ndarray) -> np.ndarray:
        p, step = softmax(x @ (origin + spread(moved)).T, axis=1), x @ spread(along).T
        dp = p * (step - (p * step).sum(1, keepdims=True))
        return (dp.T @ x / n + 2 * cost * spread(along))[free]

    options = {"gtol": gradient, "maxiter": 1000}
    unmoved = np.zeros(int(free.sum()))
    found = minimize(value_and_slope, unmoved, jac=True, hessp=curvature, method="trust-ncg", options=options)
    solved = torch.from_numpy(origin + spread(found.x)).to(start)
    return solved[:, :c], solved[:, c]
