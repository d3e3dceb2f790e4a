"""Class by class: against scikit-learn, with classes that are missing, and what is said about it."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics as oracle

from lipscale.metrics import (
    beside_the_majority,
    class_advice,
    classwise_ece,
    empty_praise,
    esce,
    operating_points,
    score_classes,
)
from lipscale.metrics.ranking import auc, average_precision


def drawn(n=600, classes=4, seed=0, rounded=None):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(n), labels] += 1.0
    return (logits if rounded is None else logits.round(decimals=rounded)), labels


@pytest.mark.parametrize("rounded", [None, 0])  # rounded ones have ties
@pytest.mark.parametrize("classes", [2, 4])
def test_every_metric_agrees_with_scikit_learn(classes, rounded):
    logits, labels = drawn(classes=classes, rounded=rounded)
    found, answers, p = score_classes(logits, labels), logits.argmax(1), logits.softmax(1).numpy()
    assert np.array_equal(found.confusion, oracle.confusion_matrix(labels, answers))
    assert found.recall == pytest.approx(oracle.recall_score(labels, answers, average=None))
    assert found.precision == pytest.approx(oracle.precision_score(labels, answers, average=None))
    assert found.balanced_accuracy == pytest.approx(oracle.balanced_accuracy_score(labels, answers))
    one_hot = np.eye(classes)[labels]
    areas = [oracle.roc_auc_score(one_hot[:, c], p[:, c]) for c in range(classes)]
    assert found.auc_by_class == pytest.approx(areas)
    assert found.auc == pytest.approx(np.mean(areas))
    expected = [oracle.average_precision_score(one_hot[:, c], p[:, c]) for c in range(classes)]
    assert found.average_precision == pytest.approx(expected)
    assert found.majority_rate == pytest.approx(float(torch.bincount(labels).max()) / len(labels))


def test_the_curve_of_thresholds_is_scikit_learns():
    logits, labels = drawn(classes=2, rounded=1)
    scores, positive = logits[:, 1], labels == 1
    points = operating_points(scores, positive)
    alarms, hits, thresholds = oracle.roc_curve(positive, scores, drop_intermediate=False)
    assert points.thresholds.tolist() == thresholds[1:].tolist()
    assert (points.hits / positive.sum()).tolist() == pytest.approx(hits[1:])
    assert (points.alarms / (~positive).sum()).tolist() == pytest.approx(alarms[1:])


def test_the_calibration_of_classes_adds_up_to_that_of_all():
    logits, labels = drawn()
    found = score_classes(logits, labels)
    assert np.mean(found.ece_by_class) == pytest.approx(classwise_ece(logits, labels))
    assert sum(found.gap_by_class) == pytest.approx(0, abs=1e-12)  # probabilities and shares both sum to one
    share = torch.bincount(labels) / len(labels)
    assert found.gap_by_class == pytest.approx((logits.softmax(1).mean(0) - share).tolist())
    two, truth = drawn(classes=2)
    sure = two.argmax(1).new_zeros(len(two))  # where one class is always answered its gap is the ESCE
    two[:, 0] += 100
    assert score_classes(two, truth).gap_by_class[0] == pytest.approx(esce(two, truth))
    assert torch.equal(two.argmax(1), sure)


def test_a_class_without_samples_or_answers_has_no_number():
    logits, labels = drawn(classes=3)
    logits[:, 1] = -50.0  # never answered
    kept = labels != 2  # never there
    with warnings.catch_warnings(action="error"):
        found = score_classes(logits[kept], labels[kept], certified={"0.1": torch.ones(int(kept.sum())) > 0})
    assert found.recall[2] is found.auc_by_class[2] is found.average_precision[2] is None
    assert found.precision[1] is None
    assert found.certified_recall["0.1"] == (1.0, 1.0, None)
    assert found.balanced_accuracy == pytest.approx((found.recall[0] + 0) / 2)
    numbers = [v for v in (*found.recall, *found.precision, *found.auc_by_class, *found.ece_by_class) if v is not None]
    assert all(map(math.isfinite, numbers))
    alone = score_classes(logits[labels == 0], labels[labels == 0])
    assert alone.auc is None
    assert alone.majority_rate == 1.0
    assert auc(operating_points(torch.zeros(0), torch.zeros(0) > 0)) is None
    assert average_precision(operating_points(torch.zeros(0), torch.zeros(0) > 0)) is None


def fraud(n=4000, share=0.01, shift=0.0, seed=0):
    """Logits of 'legit' and 'fraud' that rank well, and answer fraud where the shift lifts it."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.arange(n) < share * n).long()
    score = torch.randn(n, generator=generator, dtype=torch.float64) + 2.5 * labels
    return torch.stack((torch.zeros(n, dtype=torch.float64), score - 8 + shift), 1), labels


def said(logits, labels, **how):
    scores = score_classes(logits, labels, classes=("legit", "fraud"))
    accuracy = float((logits.argmax(1) == labels).double().mean())
    interval = (accuracy - 0.005, accuracy + 0.005)
    return scores, empty_praise(scores, accuracy, interval), class_advice(scores, interval, **how)


def test_a_network_that_always_answers_the_same_gets_a_warning():
    scores, warning, advice = said(*fraud())
    assert scores.always_answers == "legit"
    assert "always answers 'legit'" in warning
    assert "99.0 % are 'legit'" in warning
    assert "AUC 0.9" in warning  # its probabilities are worth something
    assert "`class_weights` balanced" in advice
    assert "`threshold` 0.01 answers" in advice
    assert beside_the_majority(scores) == "always answering 'legit' would be right for 99.0 %"
    logits, labels = fraud()
    turned = class_advice(score_classes(logits.flip(1), 1 - labels, classes=("fraud", "legit")), (0.98, 1.0))
    assert turned == advice  # whichever comes first in the alphabet
    told = said(*fraud(), weighted=True)[2]
    assert "class_weights" not in told
    assert "`threshold` 0.25" in told  # its probabilities are those of a balanced world
    noise = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0))
    assert "next to nothing" in said(noise + torch.tensor([9.0, 0.0]), labels)[1]


def test_hardly_better_than_the_commonest_class_is_warned_about_too():
    logits, labels = fraud()
    logits[labels.nonzero()[0], 1] = 1.0  # a single one found
    scores, warning, _ = said(logits, labels)
    assert scores.always_answers is None
    assert "hardly better than always answering 'legit'" in warning


def test_what_finds_the_rare_class_is_not_warned_about():
    scores, warning, advice = said(*fraud(shift=7.0))
    assert scores.recall[1] > 0.7
    assert warning == ""
    assert advice is None
    logits, labels = drawn()  # balanced, and no class is rare
    assert empty_praise(score_classes(logits, labels), 0.5, (0.46, 0.54)) == ""
    assert class_advice(score_classes(logits, labels), (0.46, 0.54)) is None
    alone = score_classes(logits[labels == 0], torch.zeros(int((labels == 0).sum()), dtype=torch.int64))
    assert empty_praise(alone, 1.0, (0.9, 1.0)) == ""


def test_many_classes_that_are_missed_make_a_short_advice():
    labels = torch.cat((torch.zeros(5000, dtype=torch.int64), torch.arange(200).repeat(6)))
    logits = torch.zeros(len(labels), 200, dtype=torch.float64)
    logits[:, 0] = 2.0
    scores = score_classes(logits, labels)
    assert len(class_advice(scores, (0.8, 0.82))) < 250
    assert "more rare classes" in class_advice(scores, (0.8, 0.82))
