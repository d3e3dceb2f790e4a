"""Attacks: what certificates and robust accuracy are tested against."""

from lipscale.attacks.apgd import apgd
from lipscale.attacks.autoattack import autoattack, autoattack_installed

__all__ = ["apgd", "autoattack", "autoattack_installed"]
