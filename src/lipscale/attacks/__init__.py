"""Attacks: what certificates, robust accuracy and calibration are tested against."""

from lipscale.attacks.apgd import apgd
from lipscale.attacks.autoattack import autoattack, autoattack_installed, require_autoattack
from lipscale.attacks.calibration import CalibrationAttack, calibration_attack
from lipscale.attacks.pgd import pgd

__all__ = [
    "CalibrationAttack",
    "apgd",
    "autoattack",
    "autoattack_installed",
    "calibration_attack",
    "pgd",
    "require_autoattack",
]
