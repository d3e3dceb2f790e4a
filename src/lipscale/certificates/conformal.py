"""Split-conformal sets of classes, which hold the true one with a chosen probability, also under attack.

Calibration and test samples must be exchangeable, so that neither may have trained the network. A score says how badly
a class fits an input; a quantile of the true classes' scores on held-out samples decides what is in a set.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from lipscale.certificates.certificate import Certificate
from lipscale.certificates.probabilities import highest_log_odds, log_odds, logit_reach, lowest_log_odds
from lipscale.errors import UserError
from lipscale.metrics.intervals import Interval

ScoreName = Literal["threshold", "class-conditional", "aps", "raps"]
ROUNDING = 1e-12  # of sums of probabilities


@dataclass(frozen=True)
class ConformalScore:
    """How badly each class fits an input, s_k(x); less is better.

    Attributes:
        name: ``threshold`` (LAC, Sadinle et al. 2019): s_k = -logit(p_k), so that a set holds all k with a large p_k.
            ``class-conditional`` (Vovk 2012): the same, with a quantile for each class, and its promise.
            ``aps`` (Romano et al. 2020): s_k = sum of all p_j before p_k, the largest first, + (1 - u) p_k.
            ``raps`` (Angelopoulos et al. 2021): the same + penalty (rank of k - free)_+.
        penalty: Of raps.
        free: Of raps: ranks without a penalty.

    aps and raps take uniform numbers u, one a sample: with them coverage is exact. Without them u is 0: larger sets.
    """

    name: ScoreName = "threshold"
    penalty: float = 0.1
    free: int = 1

    def __post_init__(self) -> None:
        if self.name not in get_args(ScoreName):
            raise UserError(f"`score`: expected {', '.join(get_args(ScoreName))}, got {self.name!r}")
        if not 0 <= self.penalty < math.inf or self.free < 0:
            raise UserError(f"raps takes a `penalty` and `free` ranks of at least 0, got {self.penalty:g}, {self.free}")

    @property
    def is_threshold(self) -> bool:
        """Whether the score of a class is its probability alone."""
        return self.name in ("threshold", "class-conditional")

    def of(self, logits: Tensor, draws: Tensor | None = None) -> Tensor:
        """The scores of all classes, (N, C) -> (N, C) in float64; `draws` are u, (N,)."""
        if self.is_threshold:
            return -log_odds(logits)
        z, order = logits.double().sort(dim=1, descending=True, stable=True)
        p = torch.softmax(z, 1)
        ranks = torch.arange(1, p.shape[1] + 1, device=p.device)
        return torch.zeros_like(p).scatter(1, order, p.cumsum(1) - _column(draws, p) * p + self._penalties(ranks))

    def lowest(self, certificate: Certificate, epsilon: float, draws: Tensor | None = None) -> Tensor:
        """A bound from below on the scores that `of` computes anywhere within epsilon of each input: (N, C).

        Of aps: the least mass of the classes that are before k wherever the input goes, + (1 - u) times the least p_k.
        """
        if self.is_threshold:
            return -highest_log_odds(certificate, epsilon)
        lowest, highest = (torch.sigmoid(f(certificate, epsilon)) for f in (lowest_log_odds, highest_log_odds))
        rounding, z = logit_reach(certificate, epsilon)[1].unsqueeze(1), certificate.logits
        kept, found = 1 - _column(draws, z), []
        for k in range(z.shape[1]):
            gap = z - z[:, k : k + 1] - certificate.pairwise[k] * epsilon
            before = gap > math.sqrt(2) * rounding + ROUNDING
            mass = torch.maximum((lowest * before).sum(1), 1 - (highest * ~before).sum(1)).clamp(min=0)
            found.append(mass + kept[:, 0] * lowest[:, k] + self._penalties(before.sum(1) + 1))
        return torch.stack(found, 1) - ROUNDING

    def quantiles(self, scores: Tensor, labels: Tensor, alpha: float, names: Sequence[str] = ()) -> Tensor:
        """The largest score with which each class is in a set, from held-out samples: (N, C) -> (C,)."""
        classes, own = scores.shape[1], scores.gather(1, labels.long().unsqueeze(1)).squeeze(1)
        if self.name != "class-conditional":
            return quantile(own, alpha).expand(classes)
        called = names or [*map(str, range(classes))]
        return torch.stack(
            [quantile(own[labels == k], alpha, where=f" of class {called[k]!r}") for k in range(classes)]
        )

    def _penalties(self, ranks: Tensor) -> Tensor:
        return self.penalty * (ranks - self.free).clamp(min=0) if self.name == "raps" else torch.zeros_like(ranks)


@dataclass(frozen=True)
class ConformalSets:
    """Sets of classes that hold the true one with probability 1 - alpha: {k: s_k(x) <= q_k}."""

    score: ConformalScore
    alpha: float
    quantiles: Tensor  # (C,), the q_k

    @classmethod
    def calibrate(
        cls,
        logits: Tensor,
        labels: Tensor,
        *,
        alpha: float,
        score: ConformalScore | None = None,
        draws: Tensor | None = None,
    ) -> Self:
        """Take the quantiles from held-out samples.

        Args:
            logits: (N, C), of samples that did not train the network.
            labels: (N,).
            alpha: How often a set may miss, between 0 and 1.
            score: Which score; by default a threshold.
            draws: (N,), the u of aps and raps.

        Returns:
            What makes sets of further logits.

        Example:
            >>> import torch
            >>> from lipscale.certificates import ConformalSets
            >>> logits, labels = torch.randn(99, 3), torch.randint(3, (99,))
            >>> sets = ConformalSets.calibrate(logits, labels, alpha=0.2).sets(logits)
            >>> sets.shape, int(sets.gather(1, labels.unsqueeze(1)).sum())
            (torch.Size([99, 3]), 80)
        """
        score = score or ConformalScore()
        return cls(score, alpha, score.quantiles(score.of(logits, draws), labels, alpha))

    def sets(self, logits: Tensor, draws: Tensor | None = None) -> Tensor:
        """Which classes are in the set of each input: (N, C) -> (N, C) of bool."""
        return self.score.of(logits, draws) <= self.quantiles

    def robust_sets(self, certificate: Certificate, epsilon: float, draws: Tensor | None = None) -> Tensor:
        """Sets that keep their coverage under every change up to epsilon: {k: min over the ball of s_k <= q_k}.

        A class in the set of x is in the robust set of every x' with ||x - x'|| <= epsilon. So whatever an attack made
        of x, P(y in the robust set of x') >= P(y in the set of x) >= 1 - alpha.

        Args:
            certificate: Of the inputs as they come, attacked or not.
            epsilon: The largest l2 distance to what they were, in the units of the input.
            draws: As in `sets`.

        Returns:
            (N, C) of bool.
        """
        return self.score.lowest(certificate, epsilon, draws) <= self.quantiles


def box_lowest(certificate: Certificate, epsilon: float) -> Tensor:
    """The lowest scores of Massena et al. (2025), to compare with: each logit moves by B eps whatever the others do.

    So k rises while all rivals fall, and the log-odds move by 2 B eps. The score is the threshold's.
    """
    return -log_odds(certificate.logits) - 2 * logit_reach(certificate, epsilon)[0].unsqueeze(1)


def _column(draws: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like[:, :1]) if draws is None else draws.to(like).unsqueeze(1)


def quantile(scores: Tensor, alpha: float, *, where: str = "") -> Tensor:
    """The floor(alpha (n + 1))-th largest score, which a further one exceeds with probability at most alpha.

    Args:
        scores: (n,), of the true classes of held-out samples.
        alpha: Between 0 and 1.
        where: What the samples are, for messages.

    Returns:
        A number, 0-dim.
    """
    place = misses(len(scores), alpha, where=where)
    return scores.kthvalue(len(scores) + 1 - place).values


def misses(samples: int, alpha: float, *, where: str = "") -> int:
    """floor(alpha (n + 1)), at least 1: how many of n + 1 sets may miss."""
    if not 0 < alpha < 1:
        raise UserError(f"`alpha`: expected a share between 0 and 1, got {alpha:g}")
    exact = Fraction(repr(float(alpha)))  # what people wrote: 0.1 is a tenth
    if (found := math.floor(exact * (samples + 1))) == 0:
        needed = math.ceil(1 / exact) - 1
        raise UserError(f"`alpha` {alpha:g} takes {needed} held-out samples{where}, and there are {samples}: give more")
    return found


def expected_coverage(calibrated: int, tested: int, alpha: float) -> Interval:
    """Between which ends the coverage on so many test samples lies in 95 % of all cases: beta-binomial (Vovk 2012).

    Given the calibration samples, it is Beta(n + 1 - l, l) with l = floor(alpha (n + 1)), for scores without ties.
    """
    from scipy.stats import betabinom  # slow to import

    place = misses(calibrated, alpha)
    low, high = betabinom.ppf((0.025, 0.975), tested, calibrated + 1 - place, place)
    return float(low) / tested, float(high) / tested
