"""The margin, and what networks are trained for: the objectives of constrained ones, the losses of the baselines."""

from lipscale.losses.adaptive import (
    AccuracyVersusUncertainty,
    AdaptiveLoss,
    RobustnessSmoothing,
    adaptive_cross_entropy,
)
from lipscale.losses.baselines import (
    dual_focal_loss,
    focal_loss,
    margin_smoothing_loss,
    scheduled_focal_loss,
    smoothed_cross_entropy,
)
from lipscale.losses.batchwise import avuc_loss, mmce_loss, uncertainty_threshold
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
    "AccuracyVersusUncertainty",
    "AdaptiveLoss",
    "RobustnessSmoothing",
    "adaptive_cross_entropy",
    "annealed_cross_entropy",
    "avuc_loss",
    "certificate_loss",
    "class_weights",
    "cll_loss",
    "dual_focal_loss",
    "emma_loss",
    "focal_loss",
    "hkr_loss",
    "margin",
    "margin_smoothing_loss",
    "mmce_loss",
    "offset_cross_entropy",
    "offset_of",
    "scheduled_focal_loss",
    "smoothed_cross_entropy",
    "tau_cross_entropy",
    "uncertainty_threshold",
    "weighted_mean",
]
