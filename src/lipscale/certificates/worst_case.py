"""The worst that changes of every input, each up to epsilon, could make of what people report of a classifier.

Each bound holds for all changes together, and is proven in docs/WORST_CASE.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipscale.certificates.certificate import Certificate
from lipscale.certificates.reach import Reach
from lipscale.certificates.worst_ece import worst_ece
from lipscale.metrics.binned import bins_for
from lipscale.metrics.selective import COVERAGE, answered, risks_in_order

THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)  # on the confidence


@dataclass(frozen=True)
class Selective:
    """What is proven of the answers that are given from a confidence on."""

    coverage: float  # at least this share of samples keeps such a confidence
    accuracy: float | None  # of such answers; none: perhaps none is given, and none is wrong


@dataclass(frozen=True)
class WorstCase:
    """Upper bounds, and for the selective accuracy lower ones, under every change up to an epsilon."""

    nll: float
    brier: float
    ece: float  # over the bins of the plain one
    aurc: float
    selective_risk: float  # of the most confident 80 %
    selective: dict[str, Selective]  # by threshold on the confidence


def worst_case(
    certificate: Certificate,
    labels: Tensor,
    epsilon: float,
    *,
    bins: int | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
) -> WorstCase:
    """Certified NLL, Brier score, ECE, AURC, selective risk and selective accuracy under every change up to epsilon.

    Args:
        certificate: Of the inputs.
        labels: (N,).
        epsilon: The largest change of each input; each may move in its own way.
        bins: Of the ECE, at most 16; by default as many as `lipscale.metrics.measure` takes.
        thresholds: On the confidence, for the selective accuracy.

    Returns:
        The bounds. At epsilon = 0 they are the plain metrics, but for what rounding may do.

    Example:
        >>> import lipscale, torch
        >>> from lipscale.certificates import worst_case
        >>> net, x, y = lipscale.models.mlp(3, 4, 8), torch.rand(20, 4), torch.randint(3, (20,))
        >>> certificate = lipscale.certify(net, x)
        >>> worst_case(certificate, y, 0.0).ece <= worst_case(certificate, y, 0.1).ece
        True
    """
    reach = Reach.of(certificate, labels, epsilon)
    risks = worst_risks(reach)
    return WorstCase(
        nll=certificate.nll(labels, epsilon),
        brier=certificate.brier(labels, epsilon),
        ece=worst_ece(reach, bins_for(len(labels)) if bins is None else bins),
        aurc=float(risks.mean()),
        selective_risk=float(risks[answered(COVERAGE, len(risks)) - 1]),
        selective={f"{t:g}": worst_selective(reach, t) for t in thresholds},
    )


def worst_risks(reach: Reach) -> Tensor:
    """risk(1), ..., risk(N) with every error that can be, each as confident as it can be and before its equals.

    All others are right, and as unsure as they can be.
    """
    score = torch.where(reach.can_be_wrong, reach.wrong_high, reach.low)
    errors_first = reach.can_be_wrong.long().argsort(descending=True, stable=True)
    order = errors_first[score[errors_first].argsort(descending=True, stable=True)]
    return risks_in_order(reach.can_be_wrong[order])


def worst_selective(reach: Reach, threshold: float) -> Selective:
    """A / (A + B): A right answers stay right and above the threshold, B may be wrong and above it."""
    right = int((~reach.can_be_wrong & (reach.low >= threshold)).sum())
    wrong = int((reach.can_be_wrong & (reach.wrong_high >= threshold)).sum())
    coverage = float((reach.low >= threshold).double().mean())
    return Selective(coverage, right / (right + wrong) if right + wrong else None)
