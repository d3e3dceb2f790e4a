"""Network + data -> one result."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from lipscale import metrics
from lipscale.certificate import ROUNDING_SAMPLES, Certificate, certified_accuracy
from lipscale.data import Samples
from lipscale.lipschitz import get_lipschitz
from lipscale.mode import evaluation_mode, predict_logits
from lipscale.temperature import fit_temperature


def evaluate(net: nn.Module, samples: Samples, *, epsilons: Sequence[float]) -> dict[str, Any]:
    """Accuracy, calibration and certified accuracy of a network on labelled samples."""
    with evaluation_mode(net):
        logits, labels = predict_logits(net, samples), samples.labels
        certificate = Certificate.of(net, samples.largest(ROUNDING_SAMPLES))
    return {
        "accuracy": metrics.accuracy(logits, labels),
        "nll": metrics.nll(logits, labels),
        "brier": metrics.brier(logits, labels),
        "ece": metrics.ece(logits, labels),
        "esce": metrics.esce(logits, labels),
        "temperature": fit_temperature(logits, labels),
        "lipschitz_constant": get_lipschitz(net),
        "lipschitz_bound": certificate.bound,
        "certified_accuracy": certified_accuracy(certificate.radius(logits, labels), epsilons),
        "test_size": len(samples),
    }
