"""What each answer can become when its input changes by up to epsilon: right or wrong, and how confident."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipscale.certificates.certificate import ROUNDING, Certificate
from lipscale.certificates.probabilities import highest_log_odds

FEW = 20  # classes, up to which the tighter upper ends take less time than the answers


@dataclass(frozen=True)
class Reach:
    """What each answer can become within epsilon; each (N,)."""

    low: Tensor  # no confidence can be below
    right_high: Tensor  # of a right answer
    wrong_high: Tensor  # of a wrong one
    can_be_right: Tensor
    can_be_wrong: Tensor

    @classmethod
    def of(cls, certificate: Certificate, labels: Tensor, epsilon: float) -> "Reach":
        """From the ranges of all probabilities: the confidence is the largest p_k, and it is p_y of a right answer."""
        lower, upper = certificate.probabilities(epsilon)
        if lower.shape[1] <= FEW and math.isfinite(certificate.bound):  # the logits move together: up to 7 % of AURC
            together = torch.sigmoid(highest_log_odds(certificate, epsilon)) / ROUNDING
            upper = torch.minimum(upper, together)
        own = labels.long().unsqueeze(1)
        least = ROUNDING / lower.shape[1]  # of any largest probability
        low = lower.amax(1).clamp(min=least)
        right, wrong = upper.gather(1, own).squeeze(1), upper.scatter(1, own, 0.0).amax(1)
        radii = certificate.radius(labels)
        stays_right = (radii > 0) & (radii >= epsilon)
        can_be_right = certificate.can_be(labels, epsilon)
        return cls(low, right, wrong, can_be_right & (right >= low), ~stays_right & (wrong >= low))
