"""The training loss."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lipscale.errors import UserError


def offset_cross_entropy(
    logits: Tensor, labels: Tensor, *, offset: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """Cross-entropy with an offset xi: CE(softmax(z - xi y), y), y one-hot (Sec. 2.1, with tau absorbed in L).

    The true class must win by xi before its loss counts as small, so a larger offset buys larger margins.
    `weights` (C,) let some classes count more; the mean is over the weights.
    """
    if offset:
        logits = logits - offset * F.one_hot(labels, logits.shape[-1])  # (B, C)
    return F.cross_entropy(logits, labels, weight=weights)


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
