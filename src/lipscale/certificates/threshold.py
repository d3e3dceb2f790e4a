"""A threshold for two classes: answer one of them from a probability on, with a radius for that very answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from lipscale.certificates.certificate import Certificate
from lipscale.errors import UserError

UNIT = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Threshold:
    """Answer the positive class where its probability is at least t, and the other one else.

    ``p_1 >= t`` is ``z_1 - z_0 >= logit(t)``: the boundary moves by a constant, and a constant has no slope. So the
    answer stays within ``|z_1 - z_0 - logit(t)| / K`` of the input, where K <= sqrt(2) B is the constant of the pair.

    Attributes:
        probability: t, between 0 and 1.
        positive: The class it is about, 0 or 1.
    """

    probability: float
    positive: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.probability < 1:
            raise UserError(f"`threshold`: expected a probability between 0 and 1, got {self.probability:g}")

    @classmethod
    def of(
        cls, classes: Sequence[str], probability: float, positive: str | None = None, *, counts: Sequence[int] = ()
    ) -> Self:
        """A threshold on the class of this name, by default the one with fewer samples, or the second one."""
        if len(classes) != 2:
            raise UserError(f"`threshold` is for two classes, and the run has {len(classes)}")
        if positive is not None and positive not in classes:
            raise UserError(f"`positive`: expected {classes[0]!r} or {classes[1]!r}, got {positive!r}")
        rarer = int(not counts or counts[1] <= counts[0])
        return cls(probability, rarer if positive is None else list(classes).index(positive))

    @property
    def log_odds(self) -> float:
        """logit(t)."""
        return math.log(self.probability) - math.log1p(-self.probability)

    def answers(self, logits: Tensor) -> Tensor:
        """The class that is answered, (N, 2) -> (N,)."""
        return torch.where(self._difference(logits) >= self.log_odds, self.positive, 1 - self.positive)

    def radius(self, certificate: Certificate) -> Tensor:
        """The certified radius of each answer, (N,)."""
        difference = self._difference(certificate.logits)
        gap = (difference - self.log_odds).abs()
        # The two subtractions round here, and the comparison at x' does so too: that one is wrong only where the
        # difference there is within half a unit in the last place of logit(t), because rounding keeps the order.
        gap = gap - 2 * UNIT * (difference.abs() + abs(self.log_odds))
        constant = certificate.pairwise[self.positive, 1 - self.positive]
        return certificate.until_closed(gap.unsqueeze(1), constant.expand(len(gap), 1))

    def _difference(self, logits: Tensor) -> Tensor:
        if logits.shape[1] != 2:
            raise UserError(f"`threshold` is for two classes, got logits of {logits.shape[1]}")
        return logits[:, self.positive] - logits[:, 1 - self.positive]


def decided(certificate: Certificate, threshold: Threshold | None = None) -> tuple[Tensor, Tensor]:
    """The classes that are answered, with a threshold or else the most probable ones, and their radii; each (N,)."""
    if threshold is None:
        return certificate.logits.argmax(1), certificate.radius()
    return threshold.answers(certificate.logits), threshold.radius(certificate)


class Shifted(nn.Module):
    """A network whose largest logit is the answer with a threshold: for attacks, which know nothing else."""

    def __init__(self, net: nn.Module, threshold: Threshold) -> None:
        super().__init__()
        self.net, self.threshold = net, threshold

    def forward(self, inputs: Tensor) -> Tensor:
        """(N, 2), the positive logit less logit(t)."""
        logits = self.net(inputs)
        shift = torch.zeros(2, dtype=logits.dtype, device=logits.device)
        shift[self.threshold.positive] = self.threshold.log_odds
        return logits - shift
