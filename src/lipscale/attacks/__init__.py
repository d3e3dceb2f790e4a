"""Attacks: what certificates, robust accuracy and calibration are tested against."""

from lipscale.attacks.apgd import CalibrationAttack, apgd, calibration_attack, confidence_attack
from lipscale.attacks.autoattack import autoattack, autoattack_installed, require_autoattack
from lipscale.attacks.pgd import pgd, worst_points
from lipscale.attacks.signed import signed_attack
from lipscale.attacks.uncertainty import UNCERTAINTY_ATTACKS, ace

__all__ = [
    "UNCERTAINTY_ATTACKS",
    "CalibrationAttack",
    "ace",
    "apgd",
    "autoattack",
    "autoattack_installed",
    "calibration_attack",
    "confidence_attack",
    "pgd",
    "require_autoattack",
    "signed_attack",
    "worst_points",
]
