"""Network + data -> one result."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from lipscale.bounds import get_lipschitz, is_constrained
from lipscale.calibration.temperature import measure_temperature, temperature_p_value
from lipscale.certificates import (
    Threshold,
    WorstCase,
    certified_accuracy,
    certified_within,
    decided,
    epsilon_names,
    prove,
    worst_case,
)
from lipscale.certificates.certificate import Certificate
from lipscale.certificates.proof import AT_ONCE, Proof
from lipscale.data import Samples, as_input
from lipscale.data.dataset import stacked
from lipscale.metrics import ClassScores, Scores, aurc, class_advice, measure, score_classes, selective_risk
from lipscale.metrics.class_verdict import hollow
from lipscale.metrics.intervals import Interval, share_interval
from lipscale.metrics.tolerance import TOLERANCE
from lipscale.runs.posthoc import FOLDS, MANY, SOME, Posthoc, logits_at_zero, try_calibrators


@dataclass(frozen=True, kw_only=True)
class HeldOutMetrics(ClassScores, Scores):
    """What was measured on the test part: the scores, those of each class, and what is proven."""

    temperature: float  # T* on the test set, and its 95 % interval
    temperature_interval: Interval
    temperature_p_value: float  # of the likelihood-ratio test of T = 1
    lipschitz_constant: float | None  # L; none where no constant holds the network
    lipschitz_bound: float  # proven; inf where nothing is
    certified_accuracy: dict[str, float]  # by epsilon
    test_size: int
    aurc: float | None = None  # unknown to earlier versions, as are those below
    selective_risk: float | None = None  # of the most confident 80 %
    worst_case: dict[str, WorstCase] = field(default_factory=dict)  # by epsilon; none where nothing is proven
    posthoc: Posthoc | None = None  # what post-hoc calibration would change
    threshold: float | None = None  # from which probability on `positive` was answered; none: the most probable class
    positive: str | None = None

    @property
    def hollow(self) -> str:
        """Why the accuracy deceives, where it does: an answer that hardly depends on the input."""
        return hollow(self, self.intervals.accuracy)


@dataclass(frozen=True, kw_only=True)
class Metrics(HeldOutMetrics):
    """What metrics.json holds: what was measured on the test part, and how the training went."""

    phase1_epochs: int
    phase2_epochs: int
    settled: bool | None  # whether the feedback came to rest; none without feedback
    advice: str | None = None  # about a calibration set that was too small, and about classes that are missed
    calibration_size: int
    train_size: int
    seconds: float
    cpu_seconds: float = field(default=0.0, compare=False)  # unknown to earlier versions

    @property
    def is_certified(self) -> bool:
        """Whether anything is proven about the network; nothing is where no constant holds it."""
        return self.lipschitz_constant is not None


@dataclass(frozen=True)
class Evaluation:
    """What was measured, and what it was measured from."""

    metrics: HeldOutMetrics
    logits: Tensor  # (N, C)
    labels: Tensor  # (N,)
    radii: Tensor  # (N,), certified for the predicted class, right or wrong


def evaluate(
    net: nn.Module,
    samples: Samples,
    *,
    epsilons: Sequence[float],
    calibration_size: int = 0,
    tolerance: float = TOLERANCE,
    classes: Sequence[str] = (),
    threshold: Threshold | None = None,
) -> Evaluation:
    """Accuracy, calibration with its uncertainty, and certified accuracy of a network on labelled samples.

    A threshold decides on the answers, and so on accuracy, classes and radii; calibration is that of the probabilities.
    """
    proof, labels = prove(net, samples.inputs.shape[1:]), samples.labels.long()
    certificate = certify_samples(proof, samples)
    logits, (answers, radii) = certificate.logits, decided(certificate, threshold)
    right = answers == labels
    scores = measure(logits, labels, calibration_size=calibration_size, tolerance=tolerance)
    certified = certified_within(radii * right, epsilons)
    by_class = score_classes(logits, labels, classes=classes, answers=answers, certified=certified)
    if threshold is not None:
        scores = _with_accuracy(scores, float(right.double().mean()), len(samples))
    temperature = measure_temperature(logits, labels)
    metrics = HeldOutMetrics(
        **vars(scores),
        **vars(by_class),
        temperature=temperature.value,
        temperature_interval=(temperature.lower, temperature.upper),
        temperature_p_value=temperature_p_value(logits, labels),
        lipschitz_constant=get_lipschitz(net) if is_constrained(net) else None,
        lipschitz_bound=proof.bound,
        certified_accuracy=certified_accuracy(radii * right, epsilons),
        test_size=len(samples),
        aurc=aurc(logits, labels),
        selective_risk=selective_risk(logits, labels),
        worst_case=_worst_cases(certificate, labels, epsilons),
        posthoc=_posthoc(proof, certificate, samples, epsilons, tolerance),
        threshold=None if threshold is None else threshold.probability,
        positive=None if threshold is None else by_class.classes[threshold.positive],
    )
    return Evaluation(metrics, logits, labels, radii)


def certify_samples(proof: Proof, samples: Samples) -> Certificate:
    """The certificate of all samples, in memory or on disk."""
    parts = (proof(as_input(chunk)) for chunk in samples.chunks(most=AT_ONCE, itemsize=8))
    logits, norms = stacked((found.logits, found.norms) for found in parts)
    return Certificate(proof.bound, proof.pairwise, logits, norms, proof.error)


def _worst_cases(certificate: Certificate, labels: Tensor, epsilons: Sequence[float]) -> dict[str, WorstCase]:
    """The certified worst case at each epsilon, of the most probable classes; none where nothing is proven."""
    if math.isinf(certificate.bound):
        return {}
    named = zip(epsilon_names(epsilons), epsilons, strict=True)
    return {name: worst_case(certificate, labels, eps) for name, eps in named}


def _posthoc(
    proof: Proof, certificate: Certificate, samples: Samples, epsilons: Sequence[float], tolerance: float
) -> Posthoc | None:
    """What a temperature, and for sets that are not large a vector, would change; none for a handful of samples."""
    if len(samples) < FOLDS:
        return None
    names = SOME if certificate.logits.numel() <= MANY else SOME[:-1]
    zero = logits_at_zero(proof, samples.inputs.shape[1:])
    return try_calibrators(
        certificate, samples.labels.long(), names, at_zero=zero, epsilons=epsilons, tolerance=tolerance
    )


def _with_accuracy(scores: Scores, accuracy: float, samples: int) -> Scores:
    """The scores with another accuracy: that of answers by a threshold."""
    intervals = replace(scores.intervals, accuracy=share_interval(accuracy, samples))
    return replace(scores, accuracy=accuracy, intervals=intervals)


def advised(training: str | None, metrics: HeldOutMetrics, *, weighted: bool) -> str | None:
    """What to do: what a training advises on its calibration set, then what was measured advises on the classes."""
    about_classes = class_advice(metrics, metrics.intervals.accuracy, weighted=weighted)
    return "; ".join(filter(None, (training, about_classes))) or None
