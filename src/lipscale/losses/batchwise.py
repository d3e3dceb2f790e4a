"""Losses that ask whether a batch as a whole is calibrated: they are no mean over its samples."""

import torch
import torch.nn.functional as F
from torch import Tensor

KERNEL_WIDTH = 0.4
LEAST = 1e-10  # below it a statistic of the batch counts as zero, and its root and logarithm have no slope


def mmce_loss(
    logits: Tensor, labels: Tensor, *, penalty: float, balanced: bool = False, weights: Tensor | None = None
) -> Tensor:
    """CE + penalty MMCE, MMCE^2 = sum_ij m_i m_j exp(-|p_i - p_j| / 0.4) / n^2 with m = 1[correct] - p.

    p is the confidence. `balanced` is the paper's weighted MMCE: n is the number of correct answers where i is one of
    them, and of wrong ones where it is not, so that few errors count as much as many correct answers.
    Kumar et al., 2018.
    """
    p, correct = _answers(logits, labels)
    counted = _counted(p, labels, weights)
    total = counted.sum()
    if balanced:
        right = (counted * correct).sum()
        total = torch.where(correct, right, total - right).clamp(min=LEAST)
    gaps = counted * (correct.to(p) - p) / total
    square = gaps @ torch.exp(-(p.unsqueeze(1) - p).abs() / KERNEL_WIDTH) @ gaps
    # the kernel is positive definite, and the slope of the root finite up to zero itself
    return F.cross_entropy(logits, labels, weight=weights) + penalty * square.clamp(min=LEAST**2).sqrt()


def avuc_loss(
    logits: Tensor, labels: Tensor, *, penalty: float, threshold: float, weights: Tensor | None = None
) -> Tensor:
    """CE - penalty log((n_AC + n_IU) / (n_AC + n_AU + n_IC + n_IU)): accurate answers certain, inaccurate ones not.

    Certain is an entropy u up to the threshold. Counts are soft: accurate answers weigh p, inaccurate ones 1 - p,
    times 1 - tanh u where they are certain and tanh u where they are not. Krishnan and Tickoo, 2020.
    """
    p, correct = _answers(logits, labels)
    u = entropies(logits)
    certain = u <= threshold
    weight = _counted(p, labels, weights) * torch.where(correct, p, 1 - p)
    weight = weight * torch.where(certain, 1 - torch.tanh(u), torch.tanh(u))
    good, bad = ((weight * chosen).sum() for chosen in (correct == certain, correct != certain))
    return F.cross_entropy(logits, labels, weight=weights) + penalty * torch.log1p(bad / good.clamp(min=LEAST))


def uncertainty_threshold(logits: Tensor, labels: Tensor) -> float:
    """Half way between the mean entropy of accurate answers and that of inaccurate ones, as far as there are any."""
    u, (_, correct) = entropies(logits), _answers(logits, labels)
    means = [u[chosen].mean() for chosen in (correct, ~correct) if chosen.any()]
    return float(torch.stack(means).mean())


def entropies(logits: Tensor) -> Tensor:
    """-sum_k p_k log p_k of each sample. (B, C) -> (B,)."""
    log_p = F.log_softmax(logits, 1)
    return -(log_p.exp() * log_p).sum(1)


def _answers(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The confidence of each answer, and whether it is right."""
    p, answer = torch.softmax(logits, 1).max(1)
    return p, answer == labels


def _counted(like: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """What each sample counts: 1, or the weight of its class."""
    return torch.ones_like(like) if weights is None else weights[labels.long()].to(like)
