"""Floors, limits and intervals: what they promise, by simulation."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from lipscale import metrics
from lipscale.calibration.temperature import fit_temperature
from lipscale.metrics.floor import CalibratedTwin, _derivatives, temperature_error
from lipscale.metrics.intervals import error_interval, mean_interval, share_interval

CLASSES = 6


def logits_of(n, generator):
    """Confidences of all sizes, with a heap near one as networks have."""
    size = 1 + 5 * torch.rand(n, 1, generator=generator, dtype=torch.float64)
    return size * torch.randn(n, CLASSES, generator=generator, dtype=torch.float64)


def labels_of(z, generator):
    return torch.multinomial(torch.softmax(z, 1), 1, generator=generator).squeeze(1)


def test_the_floor_is_the_ece_of_labels_drawn_from_the_confidences():
    generator = torch.Generator().manual_seed(0)
    z = logits_of(800, generator)
    drawn = [metrics.ece(z, labels_of(z, generator)) for _ in range(400)]
    floor = metrics.ece_floor(z, labels_of(z, generator))
    assert floor.mean == pytest.approx(np.mean(drawn), rel=0.05)
    assert floor.lower == pytest.approx(np.quantile(drawn, 0.025), rel=0.12)
    assert floor.upper == pytest.approx(np.quantile(drawn, 0.975), rel=0.12)


def test_the_floor_falls_with_the_root_of_the_sample_size():
    generator = torch.Generator().manual_seed(0)
    z = logits_of(64_000, generator)
    y = labels_of(z, generator)
    few, many = metrics.ece_floor(z[:1000], y[:1000]).mean, metrics.ece_floor(z, y).mean
    assert few / many == pytest.approx(8, rel=0.1)


def test_a_network_that_is_sure_and_right_is_calibrated():
    """Its ECE is one of the few values that a calibrated model can show, so it must equal them to the bit."""
    for n in (50, 200, 1000):
        p = 0.9999 - 1e-5 * torch.rand(n, 1, dtype=torch.float64)
        found = metrics.measure(torch.cat((p, 1 - p), 1), torch.zeros(n, dtype=torch.long), probabilities=True)
        assert found.as_calibrated_as_its_set
        assert found.ece_band[0] <= found.ece <= found.ece_band[1]
        assert found.intervals.esce[0] < 0 < found.intervals.esce[1]


@pytest.mark.parametrize("constant", [torch.zeros(40, 3), torch.eye(3)[torch.arange(40) % 3] * 1e6])
def test_logits_without_information_are_measured_too(constant):
    found = metrics.measure(constant, torch.arange(40) % 3, calibration_size=20)
    assert found.ece_limit >= 0
    assert found.as_calibrated_as_its_set


def test_signed_errors_of_sharp_models_are_covered():
    generator = torch.Generator().manual_seed(4)
    covered = 0
    for _ in range(200):
        p = 1 - 0.005 * torch.rand(200, 1, generator=generator, dtype=torch.float64)
        y = (torch.rand(200, generator=generator, dtype=torch.float64) > p.squeeze(1)).long()
        low, high = metrics.summary._signed_interval(
            metrics.Predictions.of(torch.cat((p, 1 - p), 1), y, probabilities=True)
        )
        covered += low <= 0 <= high
    assert covered >= 180


def test_the_signed_interval_of_equal_confidences_is_wilsons():
    p = torch.full((100, 1), 0.9, dtype=torch.float64)
    labels = (torch.arange(100) < 7).long()
    predictions = metrics.Predictions.of(torch.cat((p, 1 - p), 1), labels, probabilities=True)
    low, high = share_interval(0.93, 100)
    assert metrics.summary._signed_interval(predictions) == pytest.approx((0.9 - high, 0.9 - low), abs=1e-12)


@pytest.mark.long
def test_the_band_covers_the_ece_of_calibrated_predictions_in_93_to_97_percent():
    generator = torch.Generator().manual_seed(1)
    inside = 0
    for draw in range(1000):
        z = logits_of(500, generator)
        y = labels_of(z, generator)
        floor = metrics.ece_floor(z, y, replicates=199, seed=draw)
        inside += floor.lower <= metrics.ece(z, y) <= floor.upper
    assert 930 <= inside <= 970


@pytest.mark.long
def test_the_band_covers_a_hundred_flat_classes_too():
    generator = torch.Generator().manual_seed(1)
    inside = 0
    for draw in range(400):
        z = 0.3 * torch.randn(100, 100, generator=generator, dtype=torch.float64)
        y = labels_of(z, generator)
        floor = metrics.ece_floor(z, y, replicates=199, seed=draw)
        inside += floor.lower <= metrics.ece(z, y) <= floor.upper
    assert inside >= 0.93 * 400  # few values are possible, so a band must hold more than it promises


@pytest.mark.long
@pytest.mark.parametrize("test_size", [1000, 10_000])
def test_the_limit_holds_for_a_temperature_fitted_on_500_samples_in_93_to_97_percent(test_size):
    generator = torch.Generator().manual_seed(2)
    below = 0
    for draw in range(1000):
        z = logits_of(500 + test_size, generator)
        y = labels_of(z, generator)
        scaled = z[500:] / fit_temperature(z[:500], y[:500])
        twin = CalibratedTwin(metrics.Predictions.of(scaled, y[500:]), 15, replicates=199, seed=draw)
        below += metrics.ece(scaled, y[500:]) <= twin.limit(calibration_size=500)
    assert 930 <= below <= 970


def test_the_limit_falls_with_the_calibration_set_to_that_of_noise_alone():
    generator = torch.Generator().manual_seed(0)
    z = logits_of(5000, generator)
    y = labels_of(z, generator)
    limits = [metrics.ece_limit(z, y, calibration_size=n) for n in (50, 500, 5000, 10**9, 0)]
    assert limits == sorted(limits, reverse=True)
    assert limits[-2] == pytest.approx(limits[-1], rel=1e-3)
    floor = metrics.ece_floor(z, y)
    assert floor.mean < limits[-1] < floor.upper


def test_the_error_of_a_fitted_temperature_is_its_spread_over_samples():
    generator = torch.Generator().manual_seed(0)
    logs = []
    for _ in range(400):
        z = logits_of(500, generator)
        logs.append(math.log(fit_temperature(z, labels_of(z, generator))))
    z = logits_of(20_000, generator)
    predictions = metrics.Predictions.of(z, labels_of(z, generator))
    assert temperature_error(predictions, 500) == pytest.approx(np.std(logs), rel=0.1)


def test_the_derivatives_in_the_temperature_are_those_of_softmax():
    z, h = logits_of(50, torch.Generator().manual_seed(0)), 1e-4
    predictions = metrics.Predictions.of(z, torch.zeros(50, dtype=torch.long))
    index = predictions.predicted.unsqueeze(1)
    below, here, above = (torch.softmax(z * math.exp(d), 1).gather(1, index).squeeze(1) for d in (-h, 0, h))
    first, second = _derivatives(predictions)
    assert torch.allclose(first, (above - below) / (2 * h), atol=1e-7)
    # d2p/d delta2 along e^delta z = p'' + p', where p'' is along (1 + delta) z
    assert torch.allclose(second, (above - 2 * here + below) / h**2 - first, atol=1e-5)


def test_wilsons_interval_is_scipys():
    for correct, n in ((0, 10), (7, 10), (10, 10), (985, 1000)):
        expected = binomtest(correct, n).proportion_ci(method="wilson")
        assert share_interval(correct / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_interval_of_a_mean_is_the_normal_one():
    values = torch.arange(100, dtype=torch.float64)
    low, high = mean_interval(values)
    assert mean_interval(torch.tensor([0.0, 0.0, 0.0, 1.0]))[0] == 0  # a mean of losses is no less
    assert (low + high) / 2 == pytest.approx(49.5)
    assert high - low == pytest.approx(2 * 1.959964 * np.std(np.arange(100), ddof=1) / 10)


@pytest.mark.long
@pytest.mark.parametrize("miscalibration", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("n", [500, 5000])
def test_the_interval_covers_the_true_binned_error_whatever_the_bias(miscalibration, n):
    rng = np.random.default_rng(3)

    def predict(size):
        p = 0.5 + 0.5 * rng.beta(4, 1.3, size)
        return p, np.clip(p - miscalibration, 0, 1)

    def binned_error(p, truth):
        cell = np.minimum(np.ceil(p * 15).astype(int) - 1, 14)
        return np.abs(np.bincount(cell, p - truth)).sum() / len(p)

    true_error = binned_error(*predict(400_000))
    covered = 0
    for _ in range(200):
        p, rate = predict(n)
        both = torch.from_numpy(np.stack((p, 1 - p), 1))
        y = torch.from_numpy((rng.random(n) >= rate).astype(int))  # class 0 is always the confident one
        cells = metrics.reliability(both, y, probabilities=True)
        low, high = error_interval(cells, metrics.binned.mean_absolute)
        covered += low <= true_error <= high
    assert covered >= 0.9 * 200  # 95 % nominal; a plain bootstrap of the calibrated case covers none


def test_noise_alone_has_an_interval_that_starts_at_zero_and_a_real_error_does_not():
    generator = torch.Generator().manual_seed(0)
    z = logits_of(2000, generator)
    y = labels_of(z, generator)
    assert metrics.measure(z, y).intervals.ece[0] == 0
    low, high = metrics.measure(2 * z, y).intervals.ece
    assert 0 < low < metrics.ece(2 * z, y) < high
