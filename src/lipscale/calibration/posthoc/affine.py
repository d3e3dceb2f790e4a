"""Affine maps of the logits: vector and matrix scaling (Guo et al., 2017), Dirichlet calibration (Kull et al., 2019).

All three are multinomial logistic regressions, u = W x + b, so the mean NLL is convex in (W, b) and is solved to its
optimum. The features x are the logits (or log-probabilities) divided by T*. Then the search starts from temperature
scaling, W = I and b = 0, and the unit of the logits does not matter.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor

from lipscale.calibration.posthoc.calibrator import Calibrator
from lipscale.calibration.posthoc.scaling import positive_temperature
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
        problem = Regression(self._scaled(logits), labels, start, *self._penalty(start))
        self.weight, self.bias = problem.solve()

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
        if len(labels) < FOLDS:  # nothing to choose by: the safest
            self.chosen_odir = ODIR[0]
            return
        fold = torch.arange(len(labels), device=labels.device) % FOLDS
        best, previous = math.inf, ODIR[0]
        for odir in ODIR:
            self.chosen_odir, loss = odir, 0.0
            for held_out in range(FOLDS):
                kept, out = fold != held_out, fold == held_out
                problem = Regression(features[kept], labels[kept], start, *self._penalty(start))
                weight, bias = problem.solve(gradient=ROUGH_GRADIENT)
                loss += float(F.cross_entropy(features[out] @ weight.T + bias, labels[out], reduction="sum"))
            if loss > best:  # freer still would over-fit more, and weak penalties take the longest
                self.chosen_odir = previous
                return
            best, previous = loss, odir

    def _penalty(self, start: Tensor) -> tuple[Tensor, Tensor]:
        c, odir = len(start), self.chosen_odir or 0.0
        off_diagonal = torch.full_like(start, RIDGE + odir / (c * (c - 1))).fill_diagonal_(RIDGE)
        return off_diagonal, torch.full_like(start[0], RIDGE + odir / c)


class DirichletCalibration(MatrixScaling):
    """u = W log p + b: exact where log-probabilities have a Dirichlet distribution in every class; ODIR as above."""

    def _features(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(1)


@dataclass(frozen=True)
class Regression:
    """mean_i NLL(W x_i + b, y_i) + sum penalty (W - start)^2 + sum penalty b^2, and its minimiser."""

    features: Tensor  # x, (N, C)
    labels: Tensor  # (N,)
    start: Tensor  # (C, C)
    weight_penalty: Tensor  # (C, C)
    bias_penalty: Tensor  # (C,)

    def solve(self, *, gradient: float = GRADIENT) -> tuple[Tensor, Tensor]:
        """W (C, C) and b (C,) at the optimum, by a trust-region Newton method with exact products of the Hessian."""
        free = self._joined(self.weight_penalty, self.bias_penalty).isfinite().flatten()
        start = self._joined(self.start, torch.zeros_like(self.bias_penalty)).flatten()

        def whole(values: np.ndarray, base: Tensor) -> Tensor:
            found = base.clone()
            found[free] = torch.from_numpy(values).to(base)
            return found.view(len(self.start), -1)

        def value_and_slope(values: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = self.value_and_slope(whole(values, start))
            return value, slope.flatten()[free].cpu().numpy()

        def curvature(values: np.ndarray, along: np.ndarray) -> np.ndarray:
            product = self.curvature(whole(values, start), whole(along, torch.zeros_like(start)))
            return product.flatten()[free].cpu().numpy()

        found = minimize(
            value_and_slope,
            start[free].cpu().numpy(),
            jac=True,
            hessp=curvature,
            method="trust-ncg",
            options={"gtol": gradient, "maxiter": 1000},
        )
        parameters = whole(found.x, start)
        return parameters[:, :-1], parameters[:, -1]

    def value_and_slope(self, parameters: Tensor) -> tuple[float, Tensor]:
        """The objective at (W, b), (C, C + 1), and its gradient."""
        logs = self._outputs(parameters).log_softmax(1)  # (N, C)
        truth = self.labels.unsqueeze(1)
        penalty, distance = self._finite_penalty, parameters - self._joined(self.start, 0 * self.bias_penalty)
        value = -logs.gather(1, truth).mean() + (penalty * distance.square()).sum()
        error = logs.exp().scatter_add_(1, truth, torch.full_like(logs[:, :1], -1.0))  # p - onehot(y)
        return float(value), self._gathered(error) + 2 * penalty * distance

    def curvature(self, parameters: Tensor, along: Tensor) -> Tensor:
        """The Hessian at (W, b) times a direction, (C, C + 1)."""
        p = self._outputs(parameters).softmax(1)
        moved = self._outputs(along)
        moved = p * (moved - (p * moved).sum(1, keepdim=True))  # (diag(p) - p p^T) times the logits' direction
        return self._gathered(moved) + 2 * self._finite_penalty * along

    @property
    def _finite_penalty(self) -> Tensor:
        return self._joined(self.weight_penalty, self.bias_penalty).nan_to_num(posinf=0.0)

    def _outputs(self, parameters: Tensor) -> Tensor:
        return self.features @ parameters[:, :-1].T + parameters[:, -1]

    def _gathered(self, by_logit: Tensor) -> Tensor:
        """A derivative by the logits, (N, C), as the mean derivative by (W, b), (C, C + 1)."""
        return self._joined(by_logit.T @ self.features, by_logit.sum(0)) / len(self.labels)

    @staticmethod
    def _joined(weight: Tensor, bias: Tensor) -> Tensor:
        return torch.cat((weight, bias.unsqueeze(1)), 1)
