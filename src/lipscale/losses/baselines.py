"""The losses of the baselines that are a mean over samples; the constrained twin may be trained for them, too."""

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
    log_p = _of_truth(F.log_softmax(logits, 1), labels)
    return weighted_mean(-(_doubt(log_p) ** gamma) * log_p, labels, weights)


def scheduled_focal_loss(logits: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Focal loss with the sample-dependent gamma of Mukhoti et al., 2020 (FLSD-53): 5 where p_y < 0.2, else 3."""
    p = _of_truth(torch.softmax(logits.detach(), 1), labels)
    gamma = torch.where(p < 0.2, 5.0, 3.0).to(logits.dtype)
    return focal_loss(logits, labels, gamma=gamma, weights=weights)


def dual_focal_loss(logits: Tensor, labels: Tensor, *, gamma: float, weights: Tensor | None = None) -> Tensor:
    """Dual focal loss: -(1 - p_y + p_j)^gamma log p_y, p_j the largest probability below p_y, or 0 (Tao et al., 2023).

    A sample is let go once its true class has left the next one behind, so that fewer end under-confident.
    """
    log_probabilities = F.log_softmax(logits, 1)
    p, log_p = log_probabilities.exp(), _of_truth(log_probabilities, labels)
    below = p.masked_fill(logits >= logits.gather(1, labels.long().unsqueeze(1)), 0.0)
    return weighted_mean(-((_doubt(log_p) + below.amax(1)) ** gamma) * log_p, labels, weights)


def margin_smoothing_loss(
    logits: Tensor, labels: Tensor, *, penalty: float, margin: float, weights: Tensor | None = None
) -> Tensor:
    """MbLS: CE + penalty mean_k ReLU(max z - z_k - margin), label smoothing where logits are too far apart alone.

    Liu et al., 2022.
    """
    excess = F.relu(logits.amax(1, keepdim=True) - logits - margin).mean(1)
    return weighted_mean(F.cross_entropy(logits, labels, reduction="none") + penalty * excess, labels, weights)


def _of_truth(rows: Tensor, labels: Tensor) -> Tensor:
    """What the true classes have. (B, C) -> (B,)."""
    return rows.gather(1, labels.long().unsqueeze(1)).squeeze(1)


def _doubt(log_p: Tensor) -> Tensor:
    """1 - p by expm1: where p rounds to 1 its power still has a gradient that is a number."""
    return -torch.expm1(log_p.clamp(max=-torch.finfo(log_p.dtype).tiny))
