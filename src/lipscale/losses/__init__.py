"""The margin, and what networks are trained for: the objectives of constrained ones, the losses of the baselines."""

from lipscale.losses.baselines import focal_loss, scheduled_focal_loss, smoothed_cross_entropy
from lipscale.losses.margin import margin, offset_of
from lipscale.losses.objectives import (
    annealed_cross_entropy,
    certificate_loss,
    cll_loss,
    emma_loss,
    hkr_loss,
    offset_cross_entropy,
    tau_cross_entropy,
)
from lipscale.losses.weights import class_weights, weighted_mean

__all__ = [
    "annealed_cross_entropy",
    "certificate_loss",
    "class_weights",
    "cll_loss",
    "emma_loss",
    "focal_loss",
    "hkr_loss",
    "margin",
    "offset_cross_entropy",
    "offset_of",
    "scheduled_focal_loss",
    "smoothed_cross_entropy",
    "tau_cross_entropy",
    "weighted_mean",
]
