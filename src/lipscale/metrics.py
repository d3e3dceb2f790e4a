"""How good and how honest the probabilities are: functions of logits (N, C) and labels (N,)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lipscale.errors import UserError


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The fraction of samples whose largest logit is the true class's."""
    _check(logits, labels)
    return float((logits.argmax(1) == labels).double().mean())


def nll(logits: Tensor, labels: Tensor) -> float:
    """The negative log-likelihood, mean of -log p_y."""
    _check(logits, labels)
    return float(F.cross_entropy(logits.double(), labels.long()))


def brier(logits: Tensor, labels: Tensor) -> float:
    """The multi-class Brier score, mean of sum_c (p_c - 1[c = y])^2, between 0 and 2."""
    _check(logits, labels)
    p = torch.softmax(logits.double(), 1)
    return float((p - F.one_hot(labels.long(), logits.shape[1])).square().sum(1).mean())


def ece(logits: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error, sum_m |B_m|/N |acc(B_m) - conf(B_m)| (Sec. 2.2)."""
    share, confidence, correct = _binned(logits, labels, bins)
    return float((share * (confidence - correct).abs()).sum())


def esce(logits: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected signed calibration error, sum_m |B_m|/N (conf(B_m) - acc(B_m)): positive is over-confident.

    Without the absolute value the sum telescopes to mean confidence minus accuracy, whatever the bins.
    """
    share, confidence, correct = _binned(logits, labels, bins)
    return float((share * (confidence - correct)).sum())


def _binned(logits: Tensor, labels: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Per bin of confidence: its share of the samples, mean confidence, accuracy; each (bins,), float64.

    Bin m is (m / M, (m + 1) / M], so that confidence 1.0 falls into the last bin.
    """
    _check(logits, labels)
    if bins < 1:
        raise UserError(f"expected bins >= 1, got {bins}")
    confidence, predicted = torch.softmax(logits.double(), 1).max(1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=logits.device)
    bin_of = torch.bucketize(confidence, edges[1:-1])
    stacked = torch.stack((torch.ones_like(confidence), confidence, (predicted == labels).double()))  # (3, N)
    sums = torch.zeros(3, bins, dtype=torch.float64, device=logits.device).index_add_(1, bin_of, stacked)
    count = sums[0].clamp(min=1)
    return sums[0] / len(labels), sums[1] / count, sums[2] / count


def _check(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or len(labels) == 0:
        shapes = f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
        raise UserError(f"expected logits (N, C) and labels (N,) with N >= 1, got {shapes}")
