"""A classifier class by class: what is confused with what, found, proven, ranked and calibrated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lipscale.metrics.binned import bins_for, by_class
from lipscale.metrics.predictions import Predictions
from lipscale.metrics.ranking import auc, average_precision, operating_points

Shares = tuple[float | None, ...]  # one a class; none where there is nothing to take a share of


@dataclass(frozen=True, kw_only=True)
class ClassScores:
    """What was measured of each class, in the order of `classes`; runs from before this was measured have none."""

    classes: tuple[str, ...] = ()
    majority_rate: float | None = None  # what always answering the commonest class would have got right
    balanced_accuracy: float | None = None  # the mean recall of the classes that occur
    confusion: tuple[tuple[int, ...], ...] = ()  # rows are the truth, columns the answers
    recall: Shares = ()  # of a class's samples, the share that is answered right
    precision: Shares = ()  # of a class's answers, the share that is right
    certified_recall: dict[str, Shares] = field(default_factory=dict)  # by epsilon: right, and proven to stay so
    auc: float | None = None  # the mean of one class against the rest
    auc_by_class: Shares = ()
    average_precision: Shares = ()
    gap_by_class: Shares = ()  # mean probability minus share of samples: positive is over-confident
    ece_by_class: Shares = ()
    always_answers: str | None = None  # the class that every answer is, if there is one

    @property
    def counts(self) -> list[int]:
        """How many samples each class has."""
        return [sum(row) for row in self.confusion]

    @property
    def commonest(self) -> str:
        """The class with the most samples."""
        return self.classes[self.counts.index(max(self.counts))]


def score_classes(
    logits: Tensor,
    labels: Tensor,
    *,
    classes: Sequence[str] = (),
    answers: Tensor | None = None,
    certified: Mapping[str, Tensor] | None = None,
    probabilities: bool = False,
) -> ClassScores:
    """Every metric of single classes.

    Args:
        logits: Of test samples, (N, C), from torch or numpy.
        labels: Their true classes, (N,).
        classes: What people call the classes; else their numbers.
        answers: The classes that were answered, (N,), if not the most probable ones.
        certified: By epsilon, which samples are right and proven to stay so, (N,).
        probabilities: Whether the first argument holds probabilities.

    Returns:
        The scores; what a class without a sample, or without an answer, does not have is None.

    Example:
        >>> scores = score_classes(torch.tensor([[2.0, 0.0], [1.0, 0.0], [3.0, 1.0]]), torch.tensor([0, 0, 1]))
        >>> scores.confusion, scores.recall, scores.always_answers, scores.auc
        (((2, 0), (1, 0)), (1.0, 0.0), '0', 0.5)
    """
    predictions = Predictions.of(logits, labels, probabilities=probabilities)
    (n, count), truth = predictions.values.shape, predictions.labels
    answers = predictions.predicted if answers is None else answers
    names = tuple(classes) or tuple(map(str, range(count)))
    confusion = torch.bincount(truth * count + answers, minlength=count**2).view(count, count)
    sizes, answered, right = confusion.sum(1), confusion.sum(0), confusion.diagonal()
    recall = _shares(right, sizes)
    present = [share for share in recall if share is not None]
    ranked = [operating_points(p, truth == c) for c, p in enumerate(predictions.probabilities.unbind(1))]
    areas = tuple(map(auc, ranked))
    known = [area for area in areas if area is not None]
    gaps = by_class(predictions, bins_for(n)).gap.view(count, -1)
    proven = {name: torch.bincount(truth[kept], minlength=count) for name, kept in (certified or {}).items()}
    return ClassScores(
        classes=names,
        majority_rate=int(sizes.max()) / n,
        balanced_accuracy=sum(present) / len(present),
        confusion=tuple(map(tuple, confusion.tolist())),
        recall=recall,
        precision=_shares(right, answered),
        certified_recall={name: _shares(kept, sizes) for name, kept in proven.items()},
        auc=sum(known) / len(known) if known else None,
        auc_by_class=areas,
        average_precision=tuple(map(average_precision, ranked)),
        gap_by_class=tuple((gaps.sum(1) / n).tolist()),
        ece_by_class=tuple((gaps.abs().sum(1) / n).tolist()),
        always_answers=names[int(answers[0])] if int((answered > 0).sum()) == 1 else None,
    )


def _shares(part: Tensor, whole: Tensor) -> Shares:
    return tuple(p / w if w else None for p, w in zip(part.tolist(), whole.tolist(), strict=True))
