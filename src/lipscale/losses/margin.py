"""The margin of an answer, and what a radius is worth in it."""

import math

from torch import Tensor


def margin(logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """M(x) = z_y - max_{j != y} z_j; without labels y is the predicted class. (N, C) -> (N,)."""
    chosen = logits.argmax(1) if labels is None else labels.long()
    index = chosen.unsqueeze(1)
    runner_up = logits.scatter(1, index, -math.inf).amax(1)
    return logits.gather(1, index).squeeze(1) - runner_up


def offset_of(radius: float, lipschitz: float) -> float:
    """The offset that is worth a certified radius: xi = sqrt(2) eps L, since R_cert = M / (sqrt(2) L)."""
    return math.sqrt(2) * radius * lipschitz
