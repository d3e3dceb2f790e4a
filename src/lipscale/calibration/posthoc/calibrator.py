"""What every calibrator is: fitted once on calibration logits, then a map of logits. The base class owns the checks."""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor

from lipscale.errors import UserError


class Calibrator(ABC):
    """A map of logits (N, C) whose softmax are calibrated probabilities; a new one writes `_fit` and `_transform`."""

    keeps_radii: ClassVar[bool] = False  # whether classes and certified radii stay what they were, whatever was fitted
    _classes: int | None = None  # of the logits that it was fitted on

    def fit(self, logits: Tensor, labels: Tensor) -> Self:
        """Fit on a calibration set that the network never trained on.

        Args:
            logits: (N, C) with N >= 1, a tensor or an array.
            labels: (N,), integers.

        Returns:
            The calibrator itself.

        Example:
            >>> import torch
            >>> from lipscale.calibration.posthoc import TemperatureScaling
            >>> logits, labels = torch.tensor([[9.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])
            >>> fitted = TemperatureScaling().fit(logits, labels)
            >>> [round(p, 3) for p in fitted.transform(logits).softmax(1)[0].tolist()]
            [0.75, 0.25]
        """
        logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)  # numpy's arrays are welcome
        if logits.ndim != 2 or labels.shape != logits.shape[:1] or len(labels) == 0 or logits.shape[1] < 2:
            shapes = f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
            raise UserError(f"expected logits (N, C) and labels (N,) with N >= 1 and C >= 2, got {shapes}")
        if labels.is_floating_point() or labels.is_complex():
            raise UserError(f"expected integer labels, got {labels.dtype}")
        outside = (labels < 0) | (labels >= logits.shape[1])
        if outside.any():
            row = int(outside.nonzero()[0])
            raise UserError(f"expected labels in 0..{logits.shape[1] - 1}, got {int(labels[row])} in row {row}")
        self._fit(_finite(logits), labels.detach().long())
        self._classes = logits.shape[1]
        return self

    def transform(self, logits: Tensor) -> Tensor:
        """Calibrate logits of the same network.

        Args:
            logits: (N, C), with the number of classes that it was fitted on.

        Returns:
            Calibrated logits (N, C) in float64: their softmax are the calibrated probabilities.
        """
        logits = torch.as_tensor(logits)
        if self._classes is None:
            raise UserError(f"{type(self).__name__} is not fitted: call fit(logits, labels) first")
        if logits.ndim != 2 or logits.shape[1] != self._classes:
            raise UserError(f"expected logits (N, {self._classes}) as in fit, got {tuple(logits.shape)}")
        return self._transform(_finite(logits))

    @abstractmethod
    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        """Fit to finite logits (N, C) in float64 and labels (N,) in range."""

    @abstractmethod
    def _transform(self, logits: Tensor) -> Tensor:
        """The calibrated logits of finite logits (N, C) in float64."""


def _finite(logits: Tensor) -> Tensor:
    values = logits.detach().double()
    if not values.isfinite().all():
        row = int((~values.isfinite()).any(1).nonzero()[0])
        raise UserError(f"expected finite logits, got NaN or inf in row {row}")
    return values
