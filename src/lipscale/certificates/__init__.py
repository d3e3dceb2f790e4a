"""Radius and confidence that no small change of an input can undo; and attacks that try to break them."""

from lipscale.certificates.attacked import Attack
from lipscale.certificates.audits import Audit, audit
from lipscale.certificates.certificate import (
    Certificate,
    certified_accuracy,
    certified_accuracy_curve,
    certified_within,
    epsilon_names,
)
from lipscale.certificates.conformal import ConformalScore, ConformalSets
from lipscale.certificates.outliers import OutlierScores
from lipscale.certificates.proof import Proof, certify, prove
from lipscale.certificates.robustness import Robustness, attack_samples, measure_robustness
from lipscale.certificates.threshold import Threshold, decided
from lipscale.certificates.uncertainty import UncertaintyUnderAttack, attack_uncertainty
from lipscale.certificates.worst_case import WorstCase, worst_case

__all__ = [
    "Attack",
    "Audit",
    "Certificate",
    "ConformalScore",
    "ConformalSets",
    "OutlierScores",
    "Proof",
    "Robustness",
    "Threshold",
    "UncertaintyUnderAttack",
    "WorstCase",
    "attack_samples",
    "attack_uncertainty",
    "audit",
    "certified_accuracy",
    "certified_accuracy_curve",
    "certified_within",
    "certify",
    "decided",
    "epsilon_names",
    "measure_robustness",
    "prove",
    "worst_case",
]
