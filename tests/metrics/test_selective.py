"""The risk-coverage curve, against its definition."""

import pytest
import torch

from lipscale.errors import UserError
from lipscale.metrics import aurc, selective_risk


def test_the_curve_by_hand():
    p = torch.tensor([0.9, 0.8, 0.7, 0.6])
    rows = torch.stack((p, 1 - p), 1)
    labels = torch.tensor([0, 1, 0, 1])  # right, wrong, right, wrong
    assert aurc(rows, labels, probabilities=True) == pytest.approx((0 + 1 / 2 + 1 / 3 + 2 / 4) / 4)
    assert selective_risk(rows, labels, 0.5, probabilities=True) == pytest.approx(1 / 2)
    assert selective_risk(rows, labels, 0.6, probabilities=True) == pytest.approx(1 / 3)  # three of four


def test_it_is_the_mean_over_the_orders_of_equal_confidences():
    logits = torch.randn(30, 3, generator=torch.Generator().manual_seed(0)).round()  # many ties
    labels = torch.randint(3, (30,), generator=torch.Generator().manual_seed(1))
    confidence, wrong = logits.double().softmax(1).amax(1), (logits.argmax(1) != labels).double()
    curves = []
    for seed in range(4000):
        shuffled = torch.randperm(30, generator=torch.Generator().manual_seed(seed))
        order = shuffled[confidence[shuffled].argsort(descending=True, stable=True)]
        curves.append(wrong[order].cumsum(0) / torch.arange(1, 31))
    mean = torch.stack(curves).mean(0)
    assert aurc(logits, labels) == pytest.approx(float(mean.mean()), abs=5e-3)
    assert selective_risk(logits, labels, 0.5) == pytest.approx(float(mean[14]), abs=1e-2)


def test_full_coverage_is_the_error_rate_and_a_perfect_order_has_the_least_area():
    logits, labels = torch.randn(200, 4), torch.randint(4, (200,))
    wrong = (logits.argmax(1) != labels).double()
    assert selective_risk(logits, labels, 1.0) == pytest.approx(float(wrong.mean()))
    best = wrong.sort().values.cumsum(0) / torch.arange(1, 201)
    assert float(best.mean()) < aurc(logits, labels) < 1


@pytest.mark.parametrize("coverage", [0.0, -0.1, 1.01])
def test_impossible_coverages_are_refused(coverage):
    with pytest.raises(UserError, match="coverage"):
        selective_risk(torch.randn(5, 2), torch.zeros(5).long(), coverage)
