"""How much each class counts in a loss."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lipscale.errors import UserError


def weighted_mean(losses: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean of the samples' losses, (B,), each with the weight of its class, as torch's cross-entropy has it."""
    if weights is None:
        return losses.mean()
    chosen = weights[labels.long()]
    return (chosen * losses).sum() / chosen.sum()


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
        raise UserError(f"`class_weights`: expected {classes} numbers, one a class, got {len(chosen)}")
    return torch.tensor(chosen, dtype=torch.float32, device=labels.device)
