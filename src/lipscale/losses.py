"""The training loss."""

import torch.nn.functional as F
from torch import Tensor


def offset_cross_entropy(logits: Tensor, labels: Tensor, *, offset: float = 0.0) -> Tensor:
    """Cross-entropy with an offset xi: CE(softmax(z - xi y), y), y one-hot (Sec. 2.1, with tau absorbed in L).

    The true class must win by xi before its loss counts as small, so a larger offset buys larger margins.
    """
    if offset:
        logits = logits - offset * F.one_hot(labels, logits.shape[-1])  # (B, C)
    return F.cross_entropy(logits, labels)
