"""Metrics against torchmetrics, scikit-learn and by hand."""

import pytest
import torch
from sklearn.metrics import log_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from lipscale import metrics
from lipscale.errors import UserError


@pytest.fixture
def predictions():
    z = 2 * torch.randn(3000, 7, dtype=torch.float64)
    return z, torch.multinomial(torch.softmax(1.5 * z, 1), 1).squeeze(1)


@pytest.mark.parametrize("bins", [5, 15, 40])  # its float32 sums lose the seventh digit in fuller bins
def test_ece_agrees_with_torchmetrics(predictions, bins):
    z, y = predictions
    expected = multiclass_calibration_error(torch.softmax(z, 1), y, num_classes=7, n_bins=bins, norm="l1")
    assert metrics.ece(z, y, bins=bins) == pytest.approx(float(expected), abs=1e-7)


def test_ece_and_esce_by_hand():
    # two bins of [0, 1]: confidences 0.6 (right), 0.9 (wrong) and 0.9 (right), all in the upper one
    p = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
    y = torch.tensor([0, 1, 1])
    assert metrics.ece(p.log(), y, bins=2) == pytest.approx(0.8 - 2 / 3)
    assert metrics.esce(p.log(), y, bins=2) == pytest.approx(0.8 - 2 / 3)
    # four bins: 0.6 is alone in (0.5, 0.75], under-confident by 0.4; the others are over-confident by 0.4
    assert metrics.ece(p.log(), y, bins=4) == pytest.approx(1 / 3 * 0.4 + 2 / 3 * 0.4)
    assert metrics.esce(p.log(), y, bins=4) == pytest.approx(-1 / 3 * 0.4 + 2 / 3 * 0.4)


def test_esce_is_confidence_minus_accuracy(predictions):
    z, y = predictions
    confidence = torch.softmax(z, 1).max(1).values.mean()
    assert metrics.esce(z, y) == pytest.approx(float(confidence) - metrics.accuracy(z, y), abs=1e-12)
    assert metrics.esce(20 * z, y) > 0 > metrics.esce(0.1 * z, y)


def test_full_confidence_falls_into_the_last_bin_and_edges_below():
    certain = torch.tensor([[1000.0, 0.0]])
    assert metrics.ece(certain, torch.tensor([0])) == 0
    assert metrics.ece(certain, torch.tensor([1])) == pytest.approx(1.0)
    edge = torch.tensor([[0.75, 0.25], [0.8, 0.2]], dtype=torch.float64).log()  # 0.75 belongs to (0.5, 0.75]
    assert metrics.ece(edge, torch.tensor([0, 1]), bins=4) == pytest.approx(0.5 * 0.25 + 0.5 * 0.8)


def test_nll_and_brier(predictions):
    z, y = predictions
    p = torch.softmax(z, 1)
    assert metrics.nll(z, y) == pytest.approx(log_loss(y, p.numpy(), labels=range(7)), rel=1e-9)
    by_hand = ((p - torch.eye(7, dtype=torch.float64)[y]) ** 2).sum(1).mean()
    assert metrics.brier(z, y) == pytest.approx(float(by_hand))
    assert metrics.brier(torch.tensor([[0.0, 1000.0]]), torch.tensor([0])) == pytest.approx(2.0)


def test_bad_input_is_named(predictions):
    z, y = predictions
    for call in (metrics.accuracy, metrics.nll, metrics.brier, metrics.ece, metrics.esce):
        with pytest.raises(UserError, match="expected logits"):
            call(z, y[:-1])
    with pytest.raises(UserError, match="bins >= 1, got 0"):
        metrics.ece(z, y, bins=0)
