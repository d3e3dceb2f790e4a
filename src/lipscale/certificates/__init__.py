"""Radius and confidence that no small change of an input can undo; and attacks that try to break them."""

from lipscale.certificates.accuracy import certified_accuracy, certified_accuracy_curve, epsilon_names
from lipscale.certificates.certificate import Certificate
from lipscale.certificates.network import certify
from lipscale.certificates.rounding import ROUNDING_SAMPLES

__all__ = [
    "ROUNDING_SAMPLES",
    "Certificate",
    "certified_accuracy",
    "certified_accuracy_curve",
    "certify",
    "epsilon_names",
]
