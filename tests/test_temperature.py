"""T* against a root finder on the derivative, its invariances, and the degenerate cases of Assumption 2."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from netcal.scaling import TemperatureScaling
from scipy.optimize import brentq

from lipscale.errors import UserError
from lipscale.temperature import fit_temperature


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
