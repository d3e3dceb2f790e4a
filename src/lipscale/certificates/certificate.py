"""What is proven about a network: certified radii, certified confidence, and what follows from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lipscale.certificates.accuracy import certified_accuracy
from lipscale.errors import UserError


@dataclass(frozen=True)
class Certificate:
    """What is proven about a network: |(z_k - z_j)(x) - (z_k - z_j)(x')| <= pairwise[k, j] ||x - x'||.

    `certify` makes it, once for a set of weights; its methods take the network's logits (N, C).

    Attributes:
        bound: the proven Lipschitz constant B of the network.
        pairwise: (C, C) in float64, min(sqrt(2) B, ||w_k - w_j|| B_features): two logits of a jointly B-Lipschitz
            network differ by a sqrt(2) B-Lipschitz function, and behind a linear head by one of its own.
        rounding: the most by which float32 may move the difference of two logits at x and at x' together.

    Example:
        >>> import torch
        >>> certificate = Certificate(bound=1.0, pairwise=torch.full((2, 2), 2.0).double(), rounding=0.0)
        >>> certificate.radius(torch.tensor([[3.0, 1.0]])).tolist()
        [1.0]
    """

    bound: float
    pairwise: Tensor
    rounding: float

    @classmethod
    def none(cls, classes: int, *, device: torch.device | None = None) -> Self:
        """What is proven about an unconstrained network: nothing. Radii are zero, confidences anywhere in [0, 1]."""
        pairwise = torch.full((classes, classes), math.inf, dtype=torch.float64, device=device)
        return cls(math.inf, pairwise.fill_diagonal_(0.0), 0.0)

    def radius(self, logits: Tensor, labels: Tensor | None = None) -> Tensor:
        """R_cert(x) = 1[prediction = y] min_j (z_y - z_j) / K_yj (Sec. 2.1, pair by pair).

        Args:
            logits: (N, C), of the certified network.
            labels: (N,). With them a wrong prediction has radius zero; without them y is the predicted class.

        Returns:
            (N,) in float64: the l2 distance, in the units of the input, within which the class stays.
        """
        chosen = logits.argmax(1) if labels is None else labels.long()
        gaps = _gaps(logits, chosen) - self.rounding
        gaps.scatter_(1, chosen.unsqueeze(1), math.inf)  # y does not compete with itself
        constants = self.pairwise[chosen]
        # logits that move together (K = 0) never change places
        radii = torch.where(constants > 0, gaps / constants, torch.where(gaps > 0, math.inf, 0.0))
        return radii.amin(1).clamp(min=0)

    def confidence(
        self, logits: Tensor, epsilon: float | Tensor, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The range in which p_k stays for every change up to epsilon, k the predicted (or given) class.

        p_k(x') lies between 1 / (1 + sum_{j != k} exp(-(z_k - z_j) + K_kj eps)) and the same with -K_kj eps.

        Args:
            logits: (N, C), of the certified network.
            epsilon: one for all samples, or (N,).
            labels: (N,), the classes k; by default the predicted ones.

        Returns:
            The lower and the upper ends, each (N,) in float64.
        """
        eps = torch.as_tensor(epsilon, dtype=torch.float64, device=logits.device).reshape(-1, 1)
        if not ((eps >= 0) & eps.isfinite()).all():
            raise UserError(f"expected epsilon >= 0, got {epsilon}")
        chosen = logits.argmax(1) if labels is None else labels.long()
        # K eps, where nothing moves at eps = 0 even if K is infinite
        moved = torch.where(eps > 0, self.pairwise[chosen] * eps, 0.0) + self.rounding
        gaps = _gaps(logits, chosen)
        gaps.scatter_(1, chosen.unsqueeze(1), math.inf)  # the sum is over the other classes
        rivals_most, rivals_least = (torch.exp(sign * moved - gaps).sum(1) for sign in (1, -1))
        return 1 / (1 + rivals_most), 1 / (1 + rivals_least)

    def brier(self, logits: Tensor, labels: Tensor, epsilon: float) -> float:
        """A bound on the Brier score of a set under every change up to epsilon: mean of 2 (1 - lower p_y)^2.

        Args:
            logits: (N, C), of the certified network.
            labels: (N,).
            epsilon: the largest change of an input.

        Returns:
            The bound, between 0 and 2.
        """
        lower, _ = self.confidence(logits, epsilon, labels)
        return float((2 * (1 - lower).square()).mean())

    def accuracy(self, logits: Tensor, labels: Tensor, epsilons: Sequence[float]) -> dict[str, float]:
        """CRA: the share of samples that are correct and stay so under every change up to epsilon.

        Args:
            logits: (N, C), of the certified network.
            labels: (N,).
            epsilons: in the units of the input.

        Returns:
            From each epsilon, as a string of four digits, to its share.
        """
        return certified_accuracy(self.radius(logits, labels), epsilons)


def _gaps(logits: Tensor, chosen: Tensor) -> Tensor:
    """z_k - z_j for the chosen class k and all j, in float64: (N, C)."""
    if logits.ndim != 2 or chosen.shape != logits.shape[:1]:
        shapes = f"logits {tuple(logits.shape)} and labels {tuple(chosen.shape)}"
        raise UserError(f"expected logits (N, C) and labels (N,), got {shapes}")
    if logits.dtype not in (torch.float32, torch.float64):
        raise UserError(f"certificates need float32 or float64 logits, got {logits.dtype}")
    z = logits.detach().double()
    if not z.isfinite().all():
        raise UserError("the logits are not finite: no certificate is possible")
    return z.gather(1, chosen.unsqueeze(1)) - z
