"""What a classifier said about labelled samples: logits or probabilities, checked once for all metrics."""

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
        logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)  # numpy's arrays are welcome
        if logits.ndim != 2 or labels.shape != logits.shape[:1] or len(labels) == 0:
            shapes = f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
            raise UserError(f"expected logits (N, C) and labels (N,) with N >= 1, got {shapes}")
        if logits.shape[1] < 2:
            raise UserError(f"expected at least 2 classes, got {logits.shape[1]}: logits {tuple(logits.shape)}")
        labels = _checked_labels(labels, logits.shape[1])
        values = logits.detach().double()
        if not values.isfinite().all():
            row = int((~values.isfinite()).any(1).nonzero()[0])
            raise UserError(f"expected finite values, got NaN or inf in row {row}")
        tolerance = HALF_TOLERANCE if logits.dtype in (torch.float16, torch.bfloat16) else SUM_TOLERANCE
        bad = (values < 0).any(1) | ((values.sum(1) - 1).abs() > tolerance)
        if not probabilities:
            if not bad.any():
                warnings.warn("these logits look like probabilities: pass probabilities=True if they are", stacklevel=3)
            return cls(values, labels)
        if bad.any():
            row = int(bad.nonzero()[0])
            total, least = float(values[row].sum()), float(values[row].min())
            raise UserError(
                f"expected probabilities that sum to 1, got sum {total:.6g} and minimum {least:.3g} in row {row}; "
                "for logits leave out `probabilities=True`"
            )
        return cls(values, labels, are_probabilities=True)

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
    def _top(self) -> tuple[Tensor, Tensor]:
        best = self.probabilities.max(1)
        return best.values, best.indices

    @property
    def confidence(self) -> Tensor:
        """The largest probability of each sample, (N,)."""
        return self._top[0]

    @property
    def predicted(self) -> Tensor:
        """The class that has it, (N,)."""
        return self._top[1]

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """E_p[z] and Var_p[z] of each sample, for z = log p; each (N,)."""
        p, z = self.probabilities, self.log_probabilities.clamp(min=LEAST_LOG)
        weighed = p * z
        mean = weighed.sum(1)
        return mean, ((weighed * z).sum(1) - mean.square()).clamp(min=0)

    @cached_property
    def correct(self) -> Tensor:
        """1.0 where the predicted class is the true one, (N,)."""
        return (self.predicted == self.labels).double()


def _checked_labels(labels: Tensor, classes: int) -> Tensor:
    if labels.is_floating_point() or labels.is_complex():
        raise UserError(f"expected integer labels, got {labels.dtype}")
    labels = labels.detach().long()
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise UserError(f"expected labels in 0..{classes - 1}, got {int(labels[row])} in row {row}")
    return labels
