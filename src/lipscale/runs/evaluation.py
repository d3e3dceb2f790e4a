"""Network + data -> one result."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipscale.bounds import get_lipschitz, is_constrained
from lipscale.calibration.temperature import measure_temperature, temperature_p_value
from lipscale.certificates import certified_accuracy, prove
from lipscale.data import Samples, as_input
from lipscale.metrics import Scores, measure
from lipscale.metrics.intervals import Interval
from lipscale.metrics.tolerance import TOLERANCE

AT_ONCE = 4096  # samples in memory


@dataclass(frozen=True, kw_only=True)
class HeldOutMetrics(Scores):
    """What was measured on the test part: the scores, and what is proven."""

    temperature: float  # T* on the test set, and its 95 % interval
    temperature_interval: Interval
    temperature_p_value: float  # of the likelihood-ratio test of T = 1
    lipschitz_constant: float | None  # L; none where no constant holds the network
    lipschitz_bound: float  # proven; inf where nothing is
    certified_accuracy: dict[str, float]  # by epsilon
    test_size: int


@dataclass(frozen=True, kw_only=True)
class Metrics(HeldOutMetrics):
    """What metrics.json holds: what was measured on the test part, and how the training went."""

    phase1_epochs: int
    phase2_epochs: int
    settled: bool | None  # whether the feedback came to rest; none without feedback
    advice: str | None = None  # about a calibration set that was too small
    calibration_size: int
    train_size: int
    seconds: float

    @property
    def is_certified(self) -> bool:
        """Whether anything is proven about the network; nothing is where no constant holds it."""
        return self.lipschitz_constant is not None


@dataclass(frozen=True)
class Evaluation:
    """What was measured, and what it was measured from."""

    metrics: HeldOutMetrics
    logits: Tensor  # (N, C)
    labels: Tensor  # (N,)
    radii: Tensor  # (N,), certified for the predicted class, right or wrong


def evaluate(
    net: nn.Module,
    samples: Samples,
    *,
    epsilons: Sequence[float],
    calibration_size: int = 0,
    tolerance: float = TOLERANCE,
) -> Evaluation:
    """Accuracy, calibration with its uncertainty, and certified accuracy of a network on labelled samples."""
    proof, labels = prove(net, samples.inputs.shape[1:]), samples.labels.long()
    certificates = [proof(as_input(chunk)) for chunk in samples.inputs.split(AT_ONCE)]
    logits, radii = (torch.cat(parts) for parts in zip(*((c.logits, c.radius()) for c in certificates), strict=True))
    scores = measure(logits, labels, calibration_size=calibration_size, tolerance=tolerance)
    temperature = measure_temperature(logits, labels)
    metrics = HeldOutMetrics(
        **vars(scores),
        temperature=temperature.value,
        temperature_interval=(temperature.lower, temperature.upper),
        temperature_p_value=temperature_p_value(logits, labels),
        lipschitz_constant=get_lipschitz(net) if is_constrained(net) else None,
        lipschitz_bound=proof.bound,
        certified_accuracy=certified_accuracy(radii * (logits.argmax(1) == labels), epsilons),
        test_size=len(samples),
    )
    return Evaluation(metrics, logits, labels, radii)
