"""The margin, and the training losses: LiST's, and those of the baselines."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lipscale.errors import UserError


def margin(logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """M(x) = z_y - max_{j != y} z_j; without labels y is the predicted class. (N, C) -> (N,)."""
    chosen = logits.argmax(1) if labels is None else labels.long()
    index = chosen.unsqueeze(1)
    runner_up = logits.scatter(1, index, -math.inf).amax(1)
    return logits.gather(1, index).squeeze(1) - runner_up


def offset_cross_entropy(
    logits: Tensor, labels: Tensor, *, offset: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """Cross-entropy with an offset xi: CE(softmax(z - xi y), y), y one-hot (Sec. 2.1, with tau absorbed in L).

    The true class must win by xi before its loss counts as small, so a larger offset buys larger margins.

    Args:
        logits: (B, C).
        labels: The true classes, (B,).
        offset: xi, in units of the logits.
        weights: (C,), let some classes count more; the mean is over the weights.

    Returns:
        The mean loss, a scalar tensor.

    Example:
        >>> import torch, lipscale
        >>> round(float(lipscale.offset_cross_entropy(torch.tensor([[3.0, 0.0]]), torch.tensor([0]), offset=3.0)), 4)
        0.6931
    """
    if offset:
        logits = logits - offset * F.one_hot(labels, logits.shape[-1])  # (B, C)
    return F.cross_entropy(logits, labels, weight=weights)


def offset_of(radius: float, lipschitz: float) -> float:
    """The offset that is worth a certified radius: xi = sqrt(2) eps L, since R_cert = M / (sqrt(2) L)."""
    return math.sqrt(2) * radius * lipschitz


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
    losses = -(doubt**gamma) * log_p
    if weights is None:
        return losses.mean()
    chosen = weights[labels.long()]
    return (chosen * losses).sum() / chosen.sum()


def scheduled_focal_loss(logits: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Focal loss with the sample-dependent gamma of Mukhoti et al., 2020 (FLSD-53): 5 where p_y < 0.2, else 3."""
    p = torch.softmax(logits.detach(), 1).gather(1, labels.long().unsqueeze(1)).squeeze(1)
    gamma = torch.where(p < 0.2, 5.0, 3.0).to(logits.dtype)
    return focal_loss(logits, labels, gamma=gamma, weights=weights)


def class_weights(chosen: str | Sequence[float], labels: Tensor, classes: int) -> Tensor | None:
    """What each class's samples count in the loss, (C,); none where all count the same.

    "balanced" is N / (C n_c): every class counts as much as any other, and the mean over the samples is 1.
    """
    if chosen == "none":
        return None
    if chosen == "balanced":
        counts = torch.bincount(labels.long(), minlength=classes).float()
        return len(labels) / (classes * counts.clamp(min=1))
    if len(chosen) != classes:
        raise UserError(f"class_weights: expected {classes} numbers, one a class, got {len(chosen)}")
    return torch.tensor(chosen, dtype=torch.float32, device=labels.device)
