"""What is proven about a network's answers: certified radii, certified confidence, and what follows from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipscale.certificates.affine import Affine
from lipscale.errors import UserError

ROUNDING = 1 - 1e-12  # of the few operations here


@dataclass(frozen=True)
class Certificate:
    """The logits of some inputs, and what no change of them can undo: each row depends on itself and the weights alone.

    ``|(z_k - z_j)(x) - (z_k - z_j)(x')| <= pairwise[k, j] ||x - x'||`` in exact arithmetic. The arithmetic that
    computes the logits is off by at most `error`, at x and at x', which every radius and every range allows for.

    Attributes:
        bound: The proven Lipschitz constant B of the network.
        pairwise: (C, C) in float64, min(sqrt(2) B, ||w_k - w_j|| B_features): two logits of a jointly B-Lipschitz
            network differ by a sqrt(2) B-Lipschitz function, and behind a linear head by one of its own.
        logits: (N, C) in float64.
        norms: (N,), the l2 norms of the inputs.
        error: ``||fl(f)(x) - f(x)||``, as an affine function of ||x||.
    """

    bound: float
    pairwise: Tensor
    logits: Tensor
    norms: Tensor
    error: Affine

    def __post_init__(self) -> None:
        if not self.logits.isfinite().all():
            raise UserError("the logits are not finite: no certificate is possible")

    def radius(self, labels: Tensor | None = None) -> Tensor:
        """R_cert(x) = 1[prediction = y] min_j (z_y - z_j) / K_yj (Sec. 2.1, pair by pair), less what rounding may do.

        Args:
            labels: (N,). With them a wrong prediction has radius zero; without them y is the predicted class.

        Returns:
            (N,) in float64: the l2 distance, in the units of the input, within which the class stays.
        """
        chosen, gaps = self._gaps(labels)
        return self.until_closed(gaps, self.pairwise[chosen])

    def until_closed(self, gaps: Tensor, constants: Tensor) -> Tensor:
        """How far each input may move until one of its gaps between logits, each K-Lipschitz, can close.

        Args:
            gaps: (N, J), differences of two logits, from which a constant may be taken.
            constants: (N, J), the K of each.

        Returns:
            (N,) in float64.
        """
        # the gap at x, less the error there and at an x' at the distance R: the solution of one linear equation in R
        gaps = gaps - (2 * math.sqrt(2) * self.error.at(self.norms)).unsqueeze(1)
        constants = constants + math.sqrt(2) * self.error.slope
        # logits that move together (K = 0) never change places
        radii = torch.where(constants > 0, gaps / constants, torch.where(gaps > 0, math.inf, 0.0))
        return (radii.nan_to_num(nan=0.0, posinf=math.inf).amin(1) * ROUNDING).clamp(min=0)

    def confidence(self, epsilon: float | Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The range in which p_k stays for every change up to epsilon, k the predicted (or given) class.

        p_k(x') lies between 1 / (1 + sum_{j != k} exp(-(z_k - z_j) + K_kj eps)) and the same with -K_kj eps.

        Args:
            epsilon: One for all samples, or (N,).
            labels: (N,), the classes k; by default the predicted ones.

        Returns:
            The lower and the upper ends, each (N,) in float64.
        """
        chosen, gaps = self._gaps(labels)
        moved = self._moved(chosen, epsilon)
        own = chosen.unsqueeze(1)  # where nothing is known, inf - inf: k does not compete with itself all the same
        most, least = ((m - gaps).scatter(1, own, -math.inf).exp().sum(1) for m in (moved, -moved))
        return ROUNDING / (1 + most), (1 / (1 + least) / ROUNDING).clamp(max=1)

    def probabilities(self, epsilon: float | Tensor) -> tuple[Tensor, Tensor]:
        """The range of every class's probability under every change up to epsilon: `confidence` of each class.

        Args:
            epsilon: One for all samples, or (N,).

        Returns:
            The lower and the upper ends, each (N, C) in float64.
        """
        classes = torch.arange(self.logits.shape[1], device=self.logits.device)
        ends = (self.confidence(epsilon, k.expand(len(self.logits))) for k in classes)
        lower, upper = zip(*ends, strict=True)
        return torch.stack(lower, 1), torch.stack(upper, 1)

    def nll(self, labels: Tensor, epsilon: float) -> float:
        """A bound on the NLL of the inputs under every change up to epsilon: mean of -log lower p_y (WORST_CASE.md).

        Args:
            labels: (N,).
            epsilon: The largest change of an input.

        Returns:
            The bound; inf where nothing is proven.
        """
        chosen, gaps = self._gaps(labels)
        # in logarithms, where nothing overflows; y itself has the term exp(0)
        against = (self._moved(chosen, epsilon) - gaps).scatter(1, chosen.unsqueeze(1), 0.0)
        return float(against.logsumexp(1).mean() / ROUNDING) + (1 - ROUNDING)

    def brier(self, labels: Tensor, epsilon: float) -> float:
        """A bound on the Brier score of the inputs under every change up to epsilon (WORST_CASE.md).

        With s = 1 - lower p_y it is the mean of s^2 + min(s^2, max sum_j p_j u_j), where the other classes share the
        mass s and each has at most its upper end u_j: the largest ends are filled first.

        Args:
            labels: (N,).
            epsilon: The largest change of an input.

        Returns:
            The bound, between 0 and 2.
        """
        lower, upper = self.probabilities(epsilon)
        own = labels.long().unsqueeze(1)
        s = 1 - lower.gather(1, own)
        ends = upper.scatter(1, own, 0.0).sort(1, descending=True).values
        filled = torch.minimum((s - ends.cumsum(1) + ends).clamp(min=0), ends)
        others = torch.minimum((filled * ends).sum(1, keepdim=True), s.square())
        return min(2.0, float((s.square() + others).mean()) / ROUNDING)

    def accuracy(self, labels: Tensor, epsilons: Sequence[float]) -> dict[str, float]:
        """CRA: the share of samples that are correct and stay so under every change up to epsilon.

        Args:
            labels: (N,).
            epsilons: In the units of the input.

        Returns:
            From each epsilon, as a string of four digits, to its share.
        """
        return certified_accuracy(self.radius(labels), epsilons)

    def can_be(self, labels: Tensor, epsilon: float) -> Tensor:
        """Whether some change up to epsilon might make the given classes the answers, (N,): no z_j is out of reach."""
        chosen, gaps = self._gaps(labels)
        moved = self._moved(chosen, epsilon)
        return (gaps + moved >= -(1 - ROUNDING) * (gaps.abs() + moved)).all(1)

    def _moved(self, chosen: Tensor, epsilon: float | Tensor) -> Tensor:
        """How far z_k - z_j may be, within epsilon, from what was computed here, for k (N,) and all j: (N, C).

        That is K_kj epsilon, where nothing moves at zero even if K is infinite, and what rounding does at x and at x'.
        """
        eps = torch.as_tensor(epsilon, dtype=torch.float64, device=self.logits.device).reshape(-1, 1)
        if not ((eps >= 0) & eps.isfinite()).all():
            raise UserError(f"expected epsilon >= 0, got {epsilon}")
        rounding = math.sqrt(2) * (self.error.at(self.norms) + self.error.at(self.norms + eps.squeeze(1)))
        return torch.where(eps > 0, self.pairwise[chosen] * eps, 0.0) + rounding.unsqueeze(1)

    def _gaps(self, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """The class k, predicted or given, (N,), and z_k - z_j for all j, (N, C); k does not compete with itself."""
        chosen = self.logits.argmax(1) if labels is None else labels.long()
        if chosen.shape != self.logits.shape[:1]:
            raise UserError(f"expected {len(self.logits)} labels, got {tuple(chosen.shape)}")
        own = chosen.unsqueeze(1)
        return chosen, (self.logits.gather(1, own) - self.logits).scatter(1, own, math.inf)


def certified_accuracy(radii: Tensor, epsilons: Sequence[float]) -> dict[str, float]:
    """CRA: the share of samples that are correct and stay so within epsilon, for radii of labelled samples."""
    return {name: float(kept.double().mean()) for name, kept in certified_within(radii, epsilons).items()}


def certified_within(radii: Tensor, epsilons: Sequence[float]) -> dict[str, Tensor]:
    """By epsilon, which samples are correct and stay so within it, (N,).

    A radius of zero is a wrong prediction (or a tie), so it counts at no epsilon, zero included.
    """
    if any(not 0 <= eps < math.inf for eps in epsilons):
        raise UserError(f"expected every epsilon >= 0, got {list(epsilons)}")
    named = zip(epsilon_names(epsilons), epsilons, strict=True)
    return {name: (radii >= eps) & (radii > 0) for name, eps in named}


def epsilon_names(epsilons: Sequence[float]) -> list[str]:
    """A name for each epsilon, by which results are listed: four digits, or all where those cannot tell them apart."""
    names = [f"{eps:.4g}" for eps in epsilons]
    return names if len(set(names)) == len(names) else [repr(float(eps)) for eps in epsilons]


def certified_accuracy_curve(radii: Tensor) -> tuple[Tensor, Tensor]:
    """CRA as a step function of epsilon: where it steps, and its value just up to there."""
    steps = radii[radii > 0].sort().values
    return steps, torch.arange(len(steps), 0, -1, dtype=torch.float64) / len(radii)
