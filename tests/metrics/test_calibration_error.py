"""The verdict on calibration: its size and power by simulation, its limits, its invariances and its sentences."""

import dataclasses
import math

import pytest
import torch

from lipscale import metrics
from lipscale.errors import UserError
from lipscale.metrics.tolerance import _Simulation, error_of, groups_for

TOLERANCE = 0.02


def population(n, generator, *, sharpness):
    """Confidences of a two-class network: `sharpness` 1 is unsure of much, 8 hardly ever."""
    z = sharpness * torch.randn(n, generator=generator, dtype=torch.float64).abs()
    return torch.sigmoid(z)


def drawn(confidence, rate, generator):
    """Predictions of class 0 at these confidences that come true at these rates."""
    labels = (torch.rand(len(rate), generator=generator, dtype=torch.float64) >= rate).long()
    return metrics.Predictions.of(torch.stack((confidence, 1 - confidence), 1), labels, probabilities=True)


def gap_of(kind, p):
    """Confidence minus rate, in the shape of an error: positive is over-confident."""
    spread = (p * (1 - p)).sqrt()
    rank = p.argsort().argsort() / len(p)
    shapes = {
        "none": 0 * p,
        "over": spread,
        "under": -spread,
        "upper": spread * (rank > 0.5),
        "tilt": spread * (2 * rank - 1),  # under-confident where it is unsure, over-confident where it is sure
    }
    return shapes[kind]


def models(kind, n, *, sharpness, draws, error=TOLERANCE * 1.005):
    """Predictions of models whose mean |confidence - rate| is this error, or 0 for `none`."""
    generator = torch.Generator().manual_seed(n)
    for _ in range(draws):
        p = population(n, generator, sharpness=sharpness)
        gap = gap_of(kind, p)
        rate = p - gap * (error / float(gap.abs().mean())) if kind != "none" else p
        assert float(rate.min()) >= 0
        yield drawn(p, rate.clamp(max=1), generator)


def is_called_calibrated(predictions):
    """The verdict alone, which needs the upper limit alone."""
    return _Simulation(predictions, groups_for(predictions, TOLERANCE), 0).upper() < TOLERANCE


@pytest.mark.parametrize(("kind", "within"), [("none", True), ("over", False), ("tilt", False)])
def test_many_samples_decide(kind, within):
    error = 0.05
    generator = torch.Generator().manual_seed(0)
    p = population(50_000, generator, sharpness=2.0)
    gap = gap_of(kind, p)
    rate = p - gap * (error / float(gap.abs().mean())) if kind != "none" else p
    found = error_of(drawn(p, rate, generator))
    assert found.within is within
    assert found.samples_to_decide is None
    low, high = found.limits
    assert low <= found.value <= high
    assert low <= (error if kind != "none" else 0) <= high + 0.001  # groups average a little of it away
    assert high - low < 0.025


@pytest.mark.parametrize("seed", range(4))
def test_few_samples_leave_it_undecided_and_say_how_many_would_do(seed):
    generator = torch.Generator().manual_seed(seed)
    p = population(500, generator, sharpness=1.0)
    found = error_of(drawn(p, p, generator))
    assert found.within is None
    assert 500 < found.samples_to_decide < 20_000
    p = population(2 * found.samples_to_decide, generator, sharpness=1.0)
    assert is_called_calibrated(drawn(p, p, generator))


def test_an_error_that_equals_the_tolerance_takes_more_samples_than_there_are():
    generator = torch.Generator().manual_seed(0)
    p = population(20_000, generator, sharpness=2.0)
    predictions = drawn(p, p - 0.05 * (p > 0.9), generator)
    value = error_of(predictions).value
    assert error_of(predictions, tolerance=value).samples_to_decide > 10**6


def test_it_is_at_least_the_signed_error_and_at_most_the_error_of_single_samples():
    generator = torch.Generator().manual_seed(0)
    p = population(20_000, generator, sharpness=2.0)
    for shift in (-0.04, 0.04):
        predictions = drawn(p, (p - shift).clamp(0, 1), generator)
        signed = float((predictions.confidence - predictions.correct).mean())
        found = error_of(predictions)
        assert found.limits[1] >= abs(signed)
        assert found.value == pytest.approx(abs(signed), abs=0.005)


def test_neither_the_order_of_samples_nor_that_of_classes_matters():
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(700, 5, generator=generator, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=generator).squeeze(1)
    found = metrics.calibration_error(z, y)
    rows, columns = torch.randperm(700, generator=generator), torch.randperm(5, generator=generator)
    shuffled = metrics.calibration_error(z[rows][:, columns], columns.argsort()[y[rows]])
    assert shuffled.limits == pytest.approx(found.limits, abs=1e-9)
    assert metrics.calibration_error(torch.softmax(z, 1), y, probabilities=True).limits == pytest.approx(found.limits)


def test_the_verdict_does_not_depend_on_the_calibration_set():
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(2000, 5, generator=generator, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z / 1.3, 1), 1, generator=generator).squeeze(1)
    found = [metrics.measure(z, y, calibration_size=n) for n in (0, 20, 5000)]
    assert [f.calibrated for f in found] == [False, False, False]
    assert len({f.calibration_error_limits for f in found}) == 1
    assert [f.as_calibrated_as_its_set for f in found] == [False, True, False]


@pytest.mark.parametrize("samples", [1, 2, 5, 7, 23, 100])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 1.0])
def test_any_number_of_samples_and_equal_confidences_are_measured(samples, confidence):
    p = torch.full((samples,), confidence, dtype=torch.float64)
    labels = torch.zeros(samples, dtype=torch.long)
    found = error_of(metrics.Predictions.of(torch.stack((p, 1 - p), 1), labels, probabilities=True))
    low, high = found.limits
    assert 0 <= low <= found.value <= high <= 1
    assert not (samples < 100 and found.within)  # so few samples prove no such thing


def test_a_run_of_right_answers_leaves_room_for_the_errors_it_could_not_show():
    """With no error in n samples the rate may still be 3 / n (1 - 0.05 = exp(-3))."""
    for n in (200, 1000):
        p = torch.full((n, 1), 1 - 1e-6, dtype=torch.float64)
        predictions = metrics.Predictions.of(torch.cat((p, 1 - p), 1), torch.zeros(n).long(), probabilities=True)
        assert error_of(predictions).limits[1] == pytest.approx(3 / n, rel=0.15)


def test_more_groups_where_more_samples_can_resolve_them():
    generator = torch.Generator().manual_seed(0)
    counts = []
    for n in (500, 10_000, 100_000):
        p = population(n, generator, sharpness=1.0)
        counts.append(groups_for(drawn(p, p, generator), TOLERANCE))
    assert counts == sorted(counts)
    assert counts[0] == 6
    assert counts[-1] == 15


@pytest.mark.parametrize("tolerance", [0.0, -1.0, 1.0, math.nan])
def test_a_tolerance_that_is_none_is_refused(tolerance):
    with pytest.raises(UserError, match="`calibration_tolerance` < 1, got"):
        metrics.calibration_error(torch.zeros(9, 2), torch.zeros(9).long(), tolerance=tolerance)


def test_the_verdict_is_that_of_the_upper_limit():
    for predictions in models("none", 3000, sharpness=3.0, draws=5):
        assert is_called_calibrated(predictions) is (error_of(predictions).within is True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "n", "sharpness"),
    [
        *(("over", 360, 8.0), ("upper", 360, 8.0)),  # so sure a network cannot be under-confident by so much
        *(("over", 2000, 3.0), ("under", 2000, 3.0), ("tilt", 2000, 3.0)),
        *(("over", 10_000, 1.0), ("under", 10_000, 1.0), ("tilt", 10_000, 1.0)),
    ],
)
def test_a_model_beyond_the_tolerance_is_called_calibrated_in_at_most_5_percent(kind, n, sharpness):
    called = sum(map(is_called_calibrated, models(kind, n, sharpness=sharpness, draws=200)))
    assert called <= 16  # 5 % and two standard deviations


@pytest.mark.long
@pytest.mark.parametrize("sharpness", [1.0, 3.0, 8.0])
def test_a_calibrated_model_with_10000_samples_is_called_so_in_at_least_90_percent(sharpness):
    called = sum(map(is_called_calibrated, models("none", 10_000, sharpness=sharpness, draws=200)))
    assert called >= 172  # 90 % less two standard deviations


@pytest.mark.long
@pytest.mark.parametrize("kind", ["over", "tilt"])
def test_the_limits_hold_in_95_percent_each(kind):
    found = [error_of(p).limits for p in models(kind, 2000, sharpness=2.0, draws=100, error=0.03)]
    assert sum(high >= 0.03 for _, high in found) >= 91  # 95 % less two standard deviations
    assert sum(low <= 0.03 for low, _ in found) >= 91


def scores(**changes):
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(400, 4, generator=generator, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=generator).squeeze(1)
    return dataclasses.replace(metrics.measure(z, y), **changes)


@pytest.mark.parametrize(
    ("calibrated", "limits", "begin", "end"),
    [
        (True, (0.0, 0.014), "It is calibrated to within 2 points: ", "by at most 1.4 points."),
        (False, (0.031, 0.05), "It is not calibrated to within 2 points: ", "by at least 3.1 points."),
        (None, (0.003, 0.029), "400 test samples cannot decide ", "from 0.3 to 2.9 points; about 1,200 would decide."),
    ],
)
def test_the_verdict_is_the_first_sentence(calibrated, limits, begin, end):
    found = metrics.how_far_off(
        scores(calibrated=calibrated, calibration_error_limits=limits, samples_to_decide=1200), samples=400
    )
    assert found.startswith(begin)
    assert end in found


def test_the_direction_is_said_in_points():
    intervals = dataclasses.replace(scores().intervals, esce=(0.009, 0.019))
    found = metrics.how_far_off(scores(esce=0.014, intervals=intervals), samples=400)
    assert "Its confidence is 1.4 points too high (95 % interval 0.9 to 1.9 points)." in found
    intervals = dataclasses.replace(scores().intervals, esce=(-0.019, -0.009))
    assert "1.4 points too low (95 % interval 0.9" in metrics.how_far_off(scores(esce=-0.014, intervals=intervals), 400)
    intervals = dataclasses.replace(scores().intervals, esce=(-0.004, 0.009))
    assert "-0.4 to +0.9" in metrics.how_far_off(scores(esce=0.002, intervals=intervals), samples=400)


def test_temperature_and_calibration_set_have_sentences_of_their_own():
    found = metrics.temperature_sentence(1.06, (1.02, 1.10), 0.0001)
    assert "T = 1.06 (95 % interval 1.02 to 1.10; p-value of T = 1 below 0.001" in found
    assert "no upper limit" in metrics.temperature_sentence(3.0, (1.0, math.inf), 0.2)
    assert "no better than chance" in metrics.temperature_sentence(math.inf, (0.0, math.inf), 1.0)
    allowed = metrics.as_good_as_its_set(scores(ece=0.01, ece_limit=0.02, as_calibrated_as_its_set=True), 144)
    assert allowed == (
        "Its ECE of 0.0100 is no larger than a temperature from 144 calibration samples would leave in 95 % of cases "
        "(0.0200)."
    )
