"""The losses of the baselines, which hold no Lipschitz constant."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lipscale.losses.weights import weighted_mean


def smoothed_cross_entropy(
    logits: Tensor, labels: Tensor, *, smoothing: float, weights: Tensor | None = None
) -> Tensor:
    """Label smoothing: CE(softmax(z), (1 - s) y + s / C), so that no sample asks for full confidence.

    Szegedy et al., 2016; Müller et al., 2019.
    """
    return F.cross_entropy(logits, labels, weight=weights, label_smoothing=smoothing)


def focal_loss(logits: Tensor, labels: Tensor, *, gamma: float | Tensor, weights: Tensor | None = None) -> Tensor:
    """Focal loss: the mean of -(1 - p_y)^gamma log p_y, which lets go of samples that are sure enough.

    Lin et al., 2017. `gamma` is one number, or one for each sample, (B,). `weights` as in the cross-entropy.
    """
    log_p = F.log_softmax(logits, 1).gather(1, labels.long().unsqueeze(1)).squeeze(1)  # (B,)
    # 1 - p by expm1: where p rounds to 1 its power still has a gradient that is a number
    doubt = -torch.expm1(log_p.clamp(max=-torch.finfo(log_p.dtype).tiny))
    return weighted_mean(-(doubt**gamma) * log_p, labels, weights)


def scheduled_focal_loss(logits: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Focal loss with the sample-dependent gamma of Mukhoti et al., 2020 (FLSD-53): 5 where p_y < 0.2, else 3."""
    p = torch.softmax(logits.detach(), 1).gather(1, labels.long().unsqueeze(1)).squeeze(1)
    gamma = torch.where(p < 0.2, 5.0, 3.0).to(logits.dtype)
    return focal_loss(logits, labels, gamma=gamma, weights=weights)
