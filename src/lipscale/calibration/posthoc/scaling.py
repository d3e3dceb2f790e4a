"""One number for all classes: temperature scaling; and nothing at all, to compare with."""

from torch import Tensor

from lipscale.calibration.posthoc.calibrator import Calibrator
from lipscale.calibration.temperature import fit_temperature, measure_temperature

LEAST = -1e300  # stands for a logit of minus infinity


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
