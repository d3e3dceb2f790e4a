"""What a classifier said about labelled samples, checked once for all metrics; accuracy, NLL and Brier score of it."""

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from lipscale.errors import UserError

# what rounding may leave between a row of probabilities and one
SUM_TOLERANCE, HALF_TOLERANCE = 1e-3, 1e-2
LEAST_LOG = -700.0  # stands for log 0 where it is weighed by p = 0


@dataclass(frozen=True)
class Predictions:
    """Logits or probabilities (N, C) in float64 and labels (N,); what several metrics need is computed once."""

    values: Tensor
    labels: Tensor
    are_probabilities: bool = False

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> Self:
        """Check and convert; with `probabilities` the first argument holds those, and each row sums to one."""
        values, labels = checked(logits, labels)
        is_half = torch.as_tensor(logits).dtype in (torch.float16, torch.bfloat16)
        tolerance = HALF_TOLERANCE if is_half else SUM_TOLERANCE
        bad = (values < 0).any(1) | ((values.sum(1) - 1).abs() > tolerance)
        if probabilities and bad.any():
            row = int(bad.nonzero()[0])
            total, least = float(values[row].sum()), float(values[row].min())
            raise UserError(
                f"expected probabilities that sum to 1, got sum {total:.6g} and minimum {least:.3g} in row {row}; "
                "for logits leave out `probabilities=True`"
            )
        if not probabilities and not bad.any():
            warnings.warn("these logits look like probabilities: pass probabilities=True if they are", stacklevel=3)
        return cls(values, labels, are_probabilities=probabilities)

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def probabilities(self) -> Tensor:
        """p = softmax(z), (N, C)."""
        return self.values if self.are_probabilities else torch.softmax(self.values, 1)

    @cached_property
    def log_probabilities(self) -> Tensor:
        """log p (N, C), accurate where p itself underflows."""
        return self.values.log() if self.are_probabilities else torch.log_softmax(self.values, 1)

    @cached_property
    def confidence(self) -> Tensor:
        """The largest probability of each sample, (N,)."""
        return self.probabilities.amax(1)

    @cached_property
    def predicted(self) -> Tensor:
        """The class that has it, (N,)."""
        return self.probabilities.argmax(1)

    @cached_property
    def correct(self) -> Tensor:
        """1.0 where the predicted class is the true one, (N,)."""
        return (self.predicted == self.labels).double()

    @cached_property
    def variance(self) -> float:
        """Of a calibrated model's answers, mean p (1 - p)."""
        return float((self.confidence * (1 - self.confidence)).mean())

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """E_p[z] and Var_p[z] of each sample, for z = log p; each (N,)."""
        p, z = self.probabilities, self.log_probabilities.clamp(min=LEAST_LOG)
        weighed = p * z
        mean = weighed.sum(1)
        return mean, ((weighed * z).sum(1) - mean.square()).clamp(min=0)

    @cached_property
    def nll(self) -> Tensor:
        """-log p_y of each sample, (N,)."""
        return -self.log_probabilities.gather(1, self.labels.unsqueeze(1)).squeeze(1)

    @cached_property
    def brier(self) -> Tensor:
        """sum_c (p_c - 1[c = y])^2 = sum_c p_c^2 - 2 p_y + 1 of each sample, (N,)."""
        return self.probabilities.square().sum(1) - 2 * torch.exp(-self.nll) + 1


def accuracy(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> float:
    """The fraction of samples whose most probable class is the true one."""
    return float(Predictions.of(logits, labels, probabilities=probabilities).correct.mean())


def nll(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> float:
    """The negative log-likelihood, mean of -log p_y."""
    return float(Predictions.of(logits, labels, probabilities=probabilities).nll.mean())


def brier(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> float:
    """The multi-class Brier score, mean of sum_c (p_c - 1[c = y])^2, between 0 and 2."""
    return float(Predictions.of(logits, labels, probabilities=probabilities).brier.mean())


def checked(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Finite logits (N, C) in float64 and labels (N,) in range, from torch or numpy; or an error that names the row."""
    logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or len(labels) == 0:
        shapes = f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
        raise UserError(f"expected logits (N, C) and labels (N,) with N >= 1, got {shapes}")
    classes = logits.shape[1]
    if classes < 2:
        raise UserError(f"expected C >= 2, at least 2 classes, got {classes}: logits {tuple(logits.shape)}")
    if labels.is_floating_point() or labels.is_complex():
        raise UserError(f"expected integer labels, got {labels.dtype}")
    labels = labels.detach().long()
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise UserError(f"expected labels in 0..{classes - 1}, got {int(labels[row])} in row {row}")
    return finite(logits), labels


def finite(logits: Tensor) -> Tensor:
    """The logits in float64, if all of them are finite."""
    values = logits.detach().double()
    if not values.isfinite().all():
        row = int((~values.isfinite()).any(1).nonzero()[0])
        raise UserError(f"expected finite values, got NaN or inf in row {row}")
    return values
