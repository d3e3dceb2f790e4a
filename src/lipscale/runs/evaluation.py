"""Network + data -> one result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lipscale.certificates.certificate import ROUNDING_SAMPLES, certified_accuracy, certify
from lipscale.data import Samples
from lipscale.bounds.constant import get_lipschitz, is_constrained
from lipscale.metrics import measure
from lipscale.layers.evaluation import evaluation_mode
from lipscale.training.inference import predict_logits
from lipscale.calibration.temperature import fit_temperature


@dataclass(frozen=True)
class Evaluation:
    """What was measured, and what it was measured from."""

    metrics: dict[str, Any]
    logits: Tensor  # (N, C)
    labels: Tensor  # (N,)
    radii: Tensor  # (N,), certified for the predicted class, right or wrong


def evaluate(net: nn.Module, samples: Samples, *, epsilons: Sequence[float], calibration_size: int = 0) -> Evaluation:
    """Accuracy, calibration with its uncertainty, and certified accuracy of a network on labelled samples."""
    with evaluation_mode(net):
        logits, labels = predict_logits(net, samples), samples.labels.long()
        certificate = certify(net, samples.largest(ROUNDING_SAMPLES))
    metrics = {
        **measure(logits, labels, calibration_size=calibration_size),
        "temperature": fit_temperature(logits, labels),
        "lipschitz_constant": get_lipschitz(net) if is_constrained(net) else None,
        "lipschitz_bound": certificate.bound,
        "certified_accuracy": certified_accuracy(certificate.radius(logits, labels), epsilons),
        "test_size": len(samples),
    }
    return Evaluation(metrics, logits, labels, certificate.radius(logits))
