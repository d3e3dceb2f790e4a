"""Metrics against torchmetrics, scikit-learn, relplot, plain loops and by hand."""

import math

import numpy as np
import pytest
import relplot
import torch
from sklearn.metrics import log_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from lipscale import metrics
from lipscale.errors import UserError
from lipscale.metrics.smooth import grid_of_gaps, smooth_ece_at


def draw(n, classes=7, *, sharpness=1.0, size=2.0, seed=0):
    """Logits z and labels drawn from softmax(sharpness z): calibrated where sharpness is 1."""
    generator = torch.Generator().manual_seed(seed)
    z = size * torch.randn(n, classes, dtype=torch.float64, generator=generator)
    return z, torch.multinomial(torch.softmax(sharpness * z, 1), 1, generator=generator).squeeze(1)


@pytest.fixture
def predictions():
    return draw(3000, sharpness=1.5)


def loop_ece(confidence, correct, bins, *, norm="mean"):
    """By the definition, sample by sample: bin m is (m / M, (m + 1) / M], and zero belongs to the first."""
    edges = np.linspace(0, 1, bins + 1)
    total, worst = 0.0, 0.0
    for m in range(bins):
        inside = [i for i, c in enumerate(confidence) if edges[m] < c <= edges[m + 1] or (m == 0 and c <= edges[1])]
        if inside:
            gap = abs(sum(confidence[i] - correct[i] for i in inside)) / len(inside)
            total, worst = total + gap * len(inside) / len(confidence), max(worst, gap)
    return total if norm == "mean" else worst


@pytest.mark.parametrize("bins", [5, 15, 40])  # its float32 sums lose the seventh digit in fuller bins
def test_ece_agrees_with_torchmetrics(predictions, bins):
    z, y = predictions
    for norm, ours, off in (("l1", metrics.ece, 1e-7), ("max", metrics.maximum_ce, 1e-6)):
        expected = multiclass_calibration_error(torch.softmax(z, 1), y, num_classes=7, n_bins=bins, norm=norm)
        assert ours(z, y, bins=bins) == pytest.approx(float(expected), abs=off)


@pytest.mark.parametrize("bins", [1, 4, 10, 15])
def test_ece_agrees_with_a_plain_loop_on_edges_and_ties_too(bins):
    # probabilities on a grid of 1/20: many lie on an edge of 4 or 10 bins, and many are equal
    counts = torch.randint(0, 21, (400, 1))
    p = torch.cat((counts, 20 - counts), 1).double() / 20
    y = torch.randint(0, 2, (400,))
    confidence, predicted = p.max(1)
    correct = (predicted == y).double().tolist()
    assert metrics.ece(p, y, bins, probabilities=True) == pytest.approx(
        loop_ece(confidence.tolist(), correct, bins), abs=1e-12
    )
    assert metrics.maximum_ce(p, y, bins, probabilities=True) == pytest.approx(
        loop_ece(confidence.tolist(), correct, bins, norm="max"), abs=1e-12
    )
    classwise = [loop_ece(p[:, c].tolist(), (y == c).double().tolist(), bins) for c in range(2)]
    assert metrics.classwise_ece(p, y, bins, probabilities=True) == pytest.approx(sum(classwise) / 2, abs=1e-12)


def test_ece_and_esce_by_hand():
    # two bins of [0, 1]: confidences 0.6 (right), 0.9 (wrong) and 0.9 (right), all in the upper one
    p = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
    y = torch.tensor([0, 1, 1])
    assert metrics.ece(p.log(), y, bins=2) == pytest.approx(0.8 - 2 / 3)
    assert metrics.esce(p.log(), y, bins=2) == pytest.approx(0.8 - 2 / 3)
    # three bins: 0.6 is alone in (1/3, 2/3], under-confident by 0.4; the others are over-confident by 0.4
    assert metrics.ece(p.log(), y, bins=3) == pytest.approx(1 / 3 * 0.4 + 2 / 3 * 0.4)
    assert metrics.esce(p.log(), y, bins=3) == pytest.approx(-1 / 3 * 0.4 + 2 / 3 * 0.4)


def test_esce_is_confidence_minus_accuracy(predictions):
    z, y = predictions
    confidence = torch.softmax(z, 1).max(1).values.mean()
    assert metrics.esce(z, y) == pytest.approx(float(confidence) - metrics.accuracy(z, y), abs=1e-12)
    assert metrics.esce(20 * z, y) > 0 > metrics.esce(0.1 * z, y)


def test_full_confidence_falls_into_the_last_bin_and_edges_below():
    certain = torch.tensor([[1000.0, 0.0]]).expand(20, 2)
    bins = metrics.reliability(certain, torch.zeros(20, dtype=torch.long))
    assert bins.count.tolist() == [0] * 14 + [20]
    assert metrics.ece(certain, torch.zeros(20, dtype=torch.long)) == 0
    assert metrics.ece(certain, torch.ones(20, dtype=torch.long)) == pytest.approx(1.0)
    edge = torch.tensor([[0.5, 0.5], [0.8, 0.2]], dtype=torch.float64)  # 0.5 belongs to (0, 0.5]
    assert metrics.ece(edge, torch.tensor([0, 1]), 2, probabilities=True) == pytest.approx(0.5 * 0.5 + 0.5 * 0.8)


def test_adaptive_ece_has_bins_of_equal_mass_and_does_not_split_ties(predictions):
    z, y = predictions
    p = torch.softmax(z, 1)
    confidence, predicted = p.max(1)
    order = confidence.argsort()
    gaps = (confidence - (predicted == y).double())[order]
    by_hand = sum(abs(float(part.sum())) for part in gaps.split(200)) / 3000  # 15 bins of 200
    assert metrics.adaptive_ece(z, y) == pytest.approx(by_hand, abs=1e-12)
    shuffled = torch.randperm(40)
    p = torch.tensor([[0.75, 0.25]], dtype=torch.float64).expand(40, 2)
    y = (torch.arange(40) < 13).long()
    values = {round(metrics.adaptive_ece(p, labels, 4, probabilities=True), 12) for labels in (y, y[shuffled])}
    assert len(values) == 1  # split ties would depend on the order of the samples


@pytest.mark.parametrize("sharpness", [0.7, 1.0, 1.5])
def test_smooth_ece_agrees_with_relplot(sharpness):
    z, y = draw(5000, sharpness=sharpness)
    f, correct = relplot.multiclass_logits_to_confidences(z.numpy(), y.numpy())
    gaps = grid_of_gaps(metrics.Predictions.of(z, y))
    for sigma in (0.01, 0.03, 0.1):
        assert float(smooth_ece_at(gaps, sigma)) == pytest.approx(relplot.smECE_sigma(f, correct, sigma), abs=2e-4)
    # relplot bisects the bandwidth to 1e-3 only
    assert metrics.smooth_ece(z, y) == pytest.approx(relplot.smECE(f, correct), abs=1e-3)


def test_smoothing_keeps_mass_and_its_limit_is_the_mean_gap(predictions):
    z, y = predictions
    gaps = grid_of_gaps(metrics.Predictions.of(z, y))
    assert float(gaps.sum()) == pytest.approx(metrics.esce(z, y), abs=1e-12)
    assert float(smooth_ece_at(gaps, 30.0)) == pytest.approx(abs(metrics.esce(z, y)), abs=1e-9)
    widths = [float(smooth_ece_at(gaps, s)) for s in (0.002, 0.01, 0.05, 0.3, 1.0)]
    assert widths == sorted(widths, reverse=True)  # a wider kernel lets more gaps cancel


def test_nll_and_brier(predictions):
    z, y = predictions
    p = torch.softmax(z, 1)
    assert metrics.nll(z, y) == pytest.approx(log_loss(y, p.numpy(), labels=range(7)), rel=1e-9)
    by_hand = ((p - torch.eye(7, dtype=torch.float64)[y]) ** 2).sum(1).mean()
    assert metrics.brier(z, y) == pytest.approx(float(by_hand))
    assert metrics.brier(torch.tensor([[0.0, 1000.0]]), torch.tensor([0])) == pytest.approx(2.0)
    assert metrics.nll(torch.tensor([[0.0, 1000.0]]), torch.tensor([0])) == pytest.approx(1000.0)


def test_the_brier_score_is_calibration_plus_refinement(predictions):
    z, y = predictions
    parts = metrics.brier_parts(z, y)
    assert sum(parts) == pytest.approx(metrics.brier(z, y))
    p, by_hand = torch.softmax(z, 1).numpy(), 0.0
    for c in range(7):
        cell = np.minimum(np.ceil(p[:, c] * 15).astype(int) - 1, 14)
        for m in set(cell):
            inside = cell == m
            by_hand += inside.sum() / 3000 * (p[inside, c].mean() - (y.numpy()[inside] == c).mean()) ** 2
    assert parts.calibration == pytest.approx(by_hand)
    # sharpening all logits spoils calibration; what is left to refine hardly changes
    z, y = draw(3000)
    honest, sharper = metrics.brier_parts(z, y), metrics.brier_parts(3 * z, y)
    assert sharper.calibration > 5 * honest.calibration
    assert sharper.refinement == pytest.approx(honest.refinement, rel=0.1)


def test_probabilities_and_logits_give_the_same(predictions):
    z, y = predictions
    p = torch.softmax(z, 1)
    for metric in (
        metrics.accuracy, metrics.nll, metrics.brier, metrics.ece, metrics.esce, metrics.maximum_ce,
        metrics.adaptive_ece, metrics.classwise_ece, metrics.smooth_ece, metrics.ece_limit,
    ):  # fmt: skip
        assert metric(p, y, probabilities=True) == pytest.approx(metric(z, y), abs=1e-12)


def test_measure_holds_every_metric_and_an_interval_around_each(predictions):
    z, y = predictions
    found = metrics.measure(z, y)
    for name in (
        "accuracy",
        "nll",
        "brier",
        "ece",
        "esce",
        "maximum_ce",
        "adaptive_ece",
        "classwise_ece",
        "smooth_ece",
    ):
        assert getattr(found, name) == pytest.approx(getattr(metrics, name)(z, y), abs=1e-12)
        low, high = getattr(found.intervals, name)
        assert low <= getattr(found, name) <= high
    assert not found.as_calibrated_as_its_set
    assert found.calibrated is False
    assert found.ece > found.ece_limit > found.ece_floor
    assert metrics.measure(*draw(3000)).as_calibrated_as_its_set


Z, Y = draw(100, 3)


def spoiled(values, row, value):
    values = values.clone()
    values[row] = value
    return values


@pytest.mark.parametrize(
    ("logits", "labels", "knobs", "message"),
    [
        (Z, Y[:-1], {}, r"expected logits \(N, C\) and labels \(N,\).*\(100, 3\).*\(99,\)"),
        (Z[0], Y, {}, r"expected logits \(N, C\)"),
        (Z[:0], Y[:0], {}, "with N >= 1"),
        (spoiled(Z, 17, math.nan), Y, {}, "NaN or inf in row 17"),
        (spoiled(Z, 3, math.inf), Y, {}, "NaN or inf in row 3"),
        (Z, spoiled(Y, 5, 3), {}, r"labels in 0\.\.2, got 3 in row 5"),
        (Z, spoiled(Y, 9, -1), {}, r"labels in 0\.\.2, got -1 in row 9"),
        (Z, Y.float(), {}, "integer labels, got torch.float32"),
        (Z[:, :1], torch.zeros(100, dtype=torch.long), {}, "at least 2 classes, got 1"),
        (Z[:14], Y[:14], {"bins": 15}, "at least as many samples as bins, got 14 samples and 15 bins"),
        (Z, Y, {"bins": 0}, "bins >= 1, got 0"),
        (Z, Y, {"bins": 1.5}, "whole number of bins"),
        (Z, Y, {"probabilities": True}, "probabilities that sum to 1, .* in row 0"),
        (spoiled(Z.softmax(1), 4, 0.5), Y, {"probabilities": True}, "sum 1.5 .* in row 4"),
        (spoiled(Z.softmax(1), 8, torch.tensor([1.5, -0.5, 0])), Y, {"probabilities": True}, "-0.5 in row 8"),
    ],
)
def test_bad_input_is_named_with_its_row(logits, labels, knobs, message):
    for call in (metrics.ece, metrics.classwise_ece, metrics.ece_floor, metrics.ece_limit, metrics.measure):
        with pytest.raises(UserError, match=message):
            call(logits, labels, **knobs)
