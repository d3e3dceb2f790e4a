"""T* against a root finder on the derivative, its invariances, and the degenerate cases of Assumption 2."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from netcal.scaling import TemperatureScaling
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import chi2

from lipscale.calibration.temperature import (
    Temperature,
    cautious_temperature,
    fit_temperature,
    measure_temperature,
    temperature_p_value,
)
from lipscale.errors import UserError


def problem(n, classes, *, scale=1.0, signal=1.2, seed=0):
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=rng)
    z = torch.randn(n, classes, generator=rng, dtype=torch.float64)
    z[torch.arange(n), labels] += signal
    return z * scale, labels


def derivative(beta, z, y):
    """Psi'(beta), written as in the paper's appendix."""
    p = torch.softmax(beta * z, 1)
    return float(((p * z).sum(1) - z[torch.arange(len(y)), y]).mean())


@pytest.mark.parametrize("scale", [1e-6, 0.01, 1.0, 30.0, 1e6])
@pytest.mark.parametrize(("n", "classes"), [(40, 2), (300, 10), (2000, 100)])
def test_agrees_with_brentq_on_the_derivative(scale, n, classes):
    z, y = problem(n, classes, scale=scale)
    beta = brentq(derivative, 1e-9 / scale, 1e4 / scale, args=(z, y), xtol=1e-300, rtol=1e-14)
    assert fit_temperature(z, y) == pytest.approx(1 / beta, rel=1e-8)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), signal=st.floats(0.05, 6), n=st.integers(2, 60), classes=st.integers(2, 8))
def test_random_problems_have_a_root_or_are_degenerate(seed, signal, n, classes):
    z, y = problem(n, classes, signal=signal, seed=seed)
    t = fit_temperature(z, y)
    if t == 0:
        assert (z.argmax(1) == y).all()
    elif math.isinf(t):
        assert derivative(0.0, z, y) >= 0
    else:
        assert derivative(0.999999 / t, z, y) < 0 < derivative(1.000001 / t, z, y)


def test_agrees_with_netcal():
    z, y = problem(2000, 5)
    scaler = TemperatureScaling()
    p = torch.softmax(z, 1).numpy().astype(np.float64)
    scaler.fit(p, y.numpy())
    assert fit_temperature(z, y) == pytest.approx(1 / float(scaler.temperature[0]), rel=2e-2)


def test_scaling_the_logits_scales_the_temperature_and_shifting_them_does_nothing():
    z, y = problem(500, 10)
    t = fit_temperature(z, y)
    assert fit_temperature(z * 7, y) == pytest.approx(7 * t, rel=1e-12)
    assert fit_temperature(z + torch.randn(500, 1, dtype=torch.float64), y) == pytest.approx(t, rel=1e-9)
    assert fit_temperature(z / t, y) == pytest.approx(1.0, rel=1e-12)


def test_labels_drawn_from_the_softmax_give_temperature_one():
    z = 2 * torch.randn(200_000, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=torch.Generator().manual_seed(2)).squeeze(1)
    assert fit_temperature(z, y) == pytest.approx(1.0, abs=0.02)


def test_the_degenerate_cases_are_their_limits():
    right = torch.eye(3) * 5
    labels = torch.arange(3)
    assert fit_temperature(right, labels) == 0.0
    assert fit_temperature(-right, labels) == math.inf
    assert fit_temperature(torch.ones(3, 4), labels) == math.inf
    tied = torch.tensor([[1.0, 1.0, 0.0]])  # no class beats the truth: not misclassified
    assert fit_temperature(tied, torch.tensor([0])) == 0.0


def test_a_hair_from_degenerate_is_finite():
    z = torch.tensor([[5.0, 0.0]] * 9 + [[0.0, 1e-12]], dtype=torch.float64)
    t = fit_temperature(z, torch.zeros(10, dtype=torch.long))
    assert 0 < t < 1


def test_float32_and_integer_labels_of_any_kind_are_taken():
    z, y = problem(100, 4)
    assert fit_temperature(z.float(), y.int()) == pytest.approx(fit_temperature(z.float().double(), y), rel=1e-12)


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.tensor([[0.0, float("nan")]]), torch.tensor([0]), "row 0"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), "labels in 0..2"),
        (torch.zeros(2, 3), torch.tensor([0]), r"labels \(1,\)"),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), "N >= 1"),
    ],
)
def test_bad_input_is_named(logits, labels, message):
    with pytest.raises(UserError, match=message):
        fit_temperature(logits, labels)


def posterior(z, y, points=4001):
    """log beta on a wide fine grid, and weights: the likelihood times the information on log beta, by brute force."""
    theta = torch.linspace(-9, 6, points, dtype=torch.float64)
    logs = []
    for t in theta:
        bz = t.exp() * z
        p = torch.softmax(bz, 1)
        information = ((p * bz**2).sum(1) - (p * bz).sum(1) ** 2).sum()
        logs.append(torch.log_softmax(bz, 1)[torch.arange(len(y)), y].sum() + information.log())
    weight = torch.softmax(torch.stack(logs).nan_to_num(nan=-1e300), 0)
    return theta.numpy(), weight.numpy()


@pytest.mark.parametrize("signal", [0.5, 3.0, 30.0])
@pytest.mark.parametrize(("n", "classes"), [(5, 2), (40, 3), (300, 10)])
def test_the_measured_temperature_is_the_posterior_mean(n, classes, signal):
    z, y = problem(n, classes, signal=signal)
    measure = measure_temperature(z, y)
    theta, weight = posterior(z, y)
    mean = weight @ theta
    deviation = math.sqrt(weight @ (theta - mean) ** 2)
    assert math.log(measure.value) == pytest.approx(-mean, abs=0.01 * deviation)
    low, high = np.interp((0.025, 0.975), weight.cumsum() - weight / 2, theta)
    assert math.log(measure.lower) == pytest.approx(-high, abs=0.02 * deviation)
    if measure.upper < math.inf:
        assert math.log(measure.upper) == pytest.approx(-low, abs=0.02 * deviation)
    assert measure.error >= 0.99 * deviation
    if signal >= 3:  # far from chance
        assert measure.error == pytest.approx(deviation, rel=0.01)


@pytest.mark.parametrize(("n", "classes", "signal"), [(5, 2, 3.0), (40, 3, 0.5), (40, 3, 30.0)])
def test_the_cautious_temperature_has_the_least_expected_log_loss(n, classes, signal):
    z, y = problem(n, classes, signal=signal)
    theta, weight = posterior(z, y)
    mean = weight @ theta
    deviation = math.sqrt(weight @ (theta - mean) ** 2)
    expected = sum(w * torch.softmax(math.exp(t) * z, 1) for t, w in zip(theta, weight, strict=True) if w > 1e-9)

    def loss(t):
        return -float((expected * torch.log_softmax(math.exp(t) * z, 1)).sum())

    best = minimize_scalar(loss, bounds=(mean - 6 * deviation, mean + 6 * deviation), method="bounded").x
    assert math.log(cautious_temperature(z, y)) == pytest.approx(-best, abs=0.05 * deviation)


def test_the_cautious_temperature_knows_chance_and_is_the_measured_one_where_much_is_known():
    z, y = problem(40, 3, signal=3.0)
    assert cautious_temperature(-z, y) == math.inf
    assert cautious_temperature(z, y) > measure_temperature(z, y).value
    z, y = problem(20_000, 3, signal=3.0)
    assert cautious_temperature(z, y) == pytest.approx(measure_temperature(z, y).value, rel=0.002)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), signal=st.floats(0, 40), n=st.integers(1, 60), classes=st.integers(2, 8))
def test_every_set_better_than_chance_has_a_finite_temperature_inside_its_interval(seed, signal, n, classes):
    z, y = problem(n, classes, signal=signal, seed=seed)
    measure = measure_temperature(z, y)
    if math.isinf(measure.value):
        assert derivative(0.0, z, y) >= 0
    else:
        assert 0 < measure.lower < measure.value < measure.upper
        assert 0 < measure.error < math.inf


def test_near_chance_there_is_no_upper_limit_and_nothing_is_known():
    for seed in range(20):
        z, y = problem(300, 10, signal=0.0, seed=seed)
        measure = measure_temperature(z, y)
        if measure.upper == math.inf:
            assert measure.error > 0.5
        else:  # one in forty draws of noise looks better than chance
            assert derivative(0.0, z, y) < 0


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.3])
def test_the_likelihood_ratio_test_is_scipys(scale):
    z, y = problem(400, 5, signal=2.0)
    z = z * scale / fit_temperature(z, y)

    def negative(theta):
        return -float(torch.log_softmax(math.exp(theta) * z, 1)[torch.arange(400), y].sum())

    best = minimize_scalar(negative, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10}).fun
    expected = chi2.sf(2 * (negative(0.0) - best), 1)
    assert temperature_p_value(z, y) == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_the_likelihood_ratio_test_knows_the_limits():
    right = torch.eye(3, dtype=torch.float64) * 5
    expected = chi2.sf(2 * 3 * math.log(1 + 2 * math.exp(-5)), 1)  # at T = 0 the likelihood is 1
    assert temperature_p_value(right, torch.arange(3)) == pytest.approx(expected)
    tied = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    expected = chi2.sf(2 * (math.log(2 + math.exp(-1)) - math.log(2)), 1)
    assert temperature_p_value(tied, torch.tensor([0])) == pytest.approx(expected)
    assert temperature_p_value(torch.ones(3, 4), torch.arange(3)) == 1
    assert temperature_p_value(-right * 10, torch.arange(3)) < 1e-6  # sure, and always wrong


def test_measuring_scales_with_the_logits_as_fitting_does():
    z, y = problem(200, 5)
    once, scaled = measure_temperature(z, y), measure_temperature(z * 1e-3, y)
    assert scaled.value == pytest.approx(1e-3 * once.value, rel=1e-10)
    assert scaled.error == pytest.approx(once.error, rel=1e-8)


def calibrated(n, *, seed):
    """Logits and labels that are drawn from their softmax, so that T* = 1."""
    rng = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(n, 5, dtype=torch.float64, generator=rng)
    return z, torch.multinomial(torch.softmax(z, 1), 1, generator=rng).squeeze(1)


@pytest.mark.parametrize("n", [100, 300, 1000])
def test_the_standard_error_is_the_bootstraps(n):
    z, y = calibrated(n, seed=0)
    rng = torch.Generator().manual_seed(0)
    draws = [torch.randint(n, (n,), generator=rng) for _ in range(300)]
    logs = torch.tensor([math.log(measure_temperature(z[i], y[i]).value) for i in draws])
    assert measure_temperature(z, y).error == pytest.approx(float(logs.std()), rel=0.25)


def test_the_standard_error_covers_the_truth():
    """log T* / s is standard normal where T* = 1 is the truth."""
    scores = []
    for seed in range(200):
        measure = measure_temperature(*calibrated(300, seed=seed))
        scores.append(math.log(measure.value) / measure.error)
    assert np.mean(np.abs(scores)) == pytest.approx(math.sqrt(2 / math.pi), rel=0.15)
    assert np.mean(np.abs(scores) < 1.96) >= 0.92


def test_a_separable_set_has_a_finite_temperature_and_an_error_that_stays():
    before = math.inf
    for n in (1, 10, 100, 1000):
        z = torch.zeros(n, 4)
        z[:, 2] = 7.0
        measure = measure_temperature(z, torch.full((n,), 2))
        assert 0 < measure.value < before  # more samples without an error allow more confidence
        assert measure.error > 0.1  # no error was seen: little is known, however many samples there are
        before = measure.value
    assert fit_temperature(z, torch.full((n,), 2)) == 0


def test_no_better_than_chance_is_said_to_be_unknown():
    assert measure_temperature(-torch.eye(3) * 5, torch.arange(3)) == Temperature(math.inf, math.inf)
    assert measure_temperature(torch.ones(3, 4), torch.arange(3)) == Temperature(math.inf, math.inf)


def test_how_many_samples_would_do():
    assert Temperature(1.0, 0.3).samples_for(0.1, measured_on=50) == 450
    z, y = problem(4000, 10, signal=2.5)
    few = measure_temperature(z[:500], y[:500])
    enough = few.samples_for(few.error / 2, measured_on=500)
    assert measure_temperature(z[:enough], y[:enough]).error == pytest.approx(few.error / 2, rel=0.1)


def test_where_errors_are_many_it_is_the_plain_minimiser():
    z, y = problem(5000, 10, signal=3.0)
    measure = measure_temperature(z, y)
    assert abs(math.log(measure.value / fit_temperature(z, y))) < 0.1 * measure.error
    assert measure.upper / measure.value == pytest.approx(math.exp(1.96 * measure.error), rel=0.01)


def test_many_samples_are_measured_by_the_same_formula():
    z, y = calibrated(80_000, seed=0)  # above the size from which on a part of them says where to begin
    measure = measure_temperature(z, y)
    assert abs(math.log(measure.value / fit_temperature(z, y))) < 0.02 * measure.error
    p = torch.softmax(z, 1)
    information = float(((p * z**2).sum(1) - (p * z).sum(1) ** 2).sum())
    assert measure.error == pytest.approx(information**-0.5, rel=0.02)


def rare_errors(n, generator):
    """Labels from the softmax of margins such that one in a hundred is wrong, as on digits."""
    z = torch.randn(n, 10, generator=generator, dtype=torch.float64)
    z[:, 0] += 3 + 9 * torch.rand(n, generator=generator, dtype=torch.float64)
    z = 1.2 * z
    return z, torch.multinomial(torch.softmax(z, 1), 1, generator=generator).squeeze(1)


@pytest.mark.long
@pytest.mark.parametrize("n", [144, 500])
def test_rare_errors_leave_hardly_a_bias_and_intervals_that_cover(n):
    generator = torch.Generator().manual_seed(n)
    found = [measure_temperature(*rare_errors(n, generator)) for _ in range(400)]
    logs = np.log([m.value for m in found])
    assert abs(logs.mean()) < 0.05 + 2 * logs.std() / 20
    assert 0.92 <= np.mean([m.lower <= 1 <= m.upper for m in found]) <= 0.985


@pytest.mark.long
@pytest.mark.parametrize("n", [50, 144, 1000])
def test_the_interval_covers_and_the_test_has_its_size_where_errors_are_common(n):
    found, rejected = [], 0
    for seed in range(600):
        z, y = calibrated(n, seed=seed)
        found.append(measure_temperature(z, y))
        rejected += temperature_p_value(z, y) < 0.05
    assert 0.93 <= np.mean([m.lower <= 1 <= m.upper for m in found]) <= 0.97
    assert 0.03 <= rejected / 600 <= 0.07
    assert abs(np.mean(np.log([m.value for m in found]))) < 0.02
