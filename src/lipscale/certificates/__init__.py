"""Radius and confidence that no small change of an input can undo; and attacks that try to break them."""

from lipscale.certificates.attacked import Attack
from lipscale.certificates.audits import Audit, audit
from lipscale.certificates.certificate import (
    Certificate,
    certified_accuracy,
    certified_accuracy_curve,
    epsilon_names,
)
from lipscale.certificates.proof import Proof, certify, prove
from lipscale.certificates.robustness import Robustness, attack_samples, measure_robustness

__all__ = [
    "Attack",
    "Audit",
    "Certificate",
    "Proof",
    "Robustness",
    "attack_samples",
    "audit",
    "certified_accuracy",
    "certified_accuracy_curve",
    "certify",
    "epsilon_names",
    "measure_robustness",
    "prove",
]
