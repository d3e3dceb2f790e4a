"""What every calibrator is: fitted once, then a map of logits; and the two simplest, nothing and a temperature."""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor

from lipscale.calibration.temperature import fit_temperature, measure_temperature
from lipscale.errors import UserError
from lipscale.metrics.predictions import checked, finite

LEAST = -1e300  # stands for a logit of minus infinity


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
        values, labels = checked(logits, labels)
        self._fit(values, labels)
        self._classes = values.shape[1]
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
        return self._transform(finite(logits))

    @abstractmethod
    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        """Fit to finite logits (N, C) in float64 and labels (N,) in range."""

    @abstractmethod
    def _transform(self, logits: Tensor) -> Tensor:
        """The calibrated logits of finite logits (N, C) in float64."""


class Unchanged(Calibrator):
    """The logits as they are."""

    keeps_radii = True

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        """There is nothing to fit."""

    def _transform(self, logits: Tensor) -> Tensor:
        return logits


class TemperatureScaling(Calibrator):
    """z / T* with T* = argmin_T NLL(z / T) (Sec. 2.2; Guo et al., 2017); classes and radii are invariant (Eq. 8).

    `temperature` is T*. Where no calibration sample is misclassified it is that of `measure_temperature`, which is
    finite there; where the logits are no better than chance it is inf: all classes alike.
    """

    keeps_radii = True
    temperature: float

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        self.temperature = positive_temperature(logits, labels)

    def _transform(self, logits: Tensor) -> Tensor:
        # relative to the top, so that a tiny temperature overflows for hopeless classes only, and never to NaN
        relative = logits - logits.amax(1, keepdim=True)
        return (relative / self.temperature).clamp(min=LEAST)


def positive_temperature(logits: Tensor, labels: Tensor) -> float:
    """T*, or the measured one where that is the limit 0; it may be inf."""
    return fit_temperature(logits, labels) or measure_temperature(logits, labels).value
