"""Post-hoc calibrators against netcal and scikit-learn in float64, their optimality, invariances and edge cases."""

import math
from itertools import pairwise

import netcal.binning
import netcal.scaling
import numpy as np
import pytest
import torch
from scipy.special import betaln
from sklearn.linear_model import LogisticRegression

from lipscale.calibration.posthoc import (
    CALIBRATORS,
    BayesianBinning,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
    calibrator,
    compare,
)
from lipscale.calibration.posthoc.affine import RIDGE, AffineCalibrator, DirichletCalibration
from lipscale.calibration.posthoc.one_vs_rest import FLOOR
from lipscale.errors import UserError
from lipscale.metrics import accuracy, nll

AFFINE = ["vector", "matrix", "dirichlet"]
FITTED = [name for name in CALIBRATORS if name != "none"]


def problem(n, classes, *, seed=0, scale=2.5, skew=0.8):
    """Logits whose classes are over-confident each to its own degree, and labels from what they should have been."""
    rng = torch.Generator().manual_seed(seed)
    honest = 2 * torch.randn(n, classes, generator=rng, dtype=torch.float64)
    labels = torch.multinomial(honest.softmax(1), 1, generator=rng).squeeze(1)
    return honest * torch.linspace(scale, scale * (1 + skew), classes, dtype=torch.float64), labels


@pytest.fixture(scope="module")
def digits_logits(digits, digits_net):
    """Real logits: of held-out digits, half to calibrate and half to test."""
    with torch.no_grad():
        logits = 3 * digits_net(digits.test.inputs).double()
    half = len(logits) // 2
    return logits[:half], digits.test.labels[:half], logits[half:], digits.test.labels[half:]


def probabilities(logits):
    return logits.softmax(1).numpy().astype(np.float64)


def floored_nll(p, labels):
    """Of an oracle's probabilities, with our floor where it says 0, normalised after it."""
    q = np.maximum(np.nan_to_num(p), FLOOR)
    return float(-np.log((q / q.sum(1, keepdims=True))[np.arange(len(p)), labels.numpy()]).mean())


class TestOracles:
    @pytest.mark.parametrize(
        ("name", "oracle"),
        [
            ("temperature", netcal.scaling.TemperatureScaling),
            ("histogram", lambda: netcal.binning.HistogramBinning(bins=15, independent_probabilities=True)),
            ("isotonic", lambda: netcal.binning.IsotonicRegression(independent_probabilities=True)),
        ],
    )
    @pytest.mark.parametrize("real", [False, True])
    def test_agrees_with_netcal(self, name, oracle, real, digits_logits):
        z, y, test_z, test_y = digits_logits if real else (*problem(3000, 5), *problem(3000, 5, seed=1))
        theirs = oracle()
        theirs.fit(probabilities(z), y.numpy())
        ours = calibrator(name).fit(z, y)
        for logits, labels in ((z, y), (test_z, test_y)):
            expected = floored_nll(theirs.transform(probabilities(logits)), labels)
            assert nll(ours.transform(logits), labels) == pytest.approx(expected, abs=1e-3)

    @pytest.mark.parametrize("classes", [3, 10])
    @pytest.mark.parametrize(("kind", "features"), [(MatrixScaling, "centred"), (DirichletCalibration, "logs")])
    def test_without_a_penalty_matrix_and_dirichlet_are_scikit_learns_regression(self, classes, kind, features):
        z, y = problem(3000, classes)
        x = z - z.mean(1, keepdim=True) if features == "centred" else z.log_softmax(1)
        theirs = LogisticRegression(C=np.inf, tol=1e-8, max_iter=10000).fit(x.numpy(), y.numpy())
        ours = kind(odir=0.0).fit(z, y)
        assert nll(ours.transform(z), y) == pytest.approx(floored_nll(theirs.predict_proba(x.numpy()), y), abs=1e-5)
        test_z, test_y = problem(3000, classes, seed=1)
        x = test_z - test_z.mean(1, keepdim=True) if features == "centred" else test_z.log_softmax(1)
        expected = floored_nll(theirs.predict_proba(x.numpy()), test_y)
        assert nll(ours.transform(test_z), test_y) == pytest.approx(expected, abs=1e-3)

    def test_two_classes_under_a_vector_are_platts_scaling_in_netcal_and_scikit_learn(self):
        z, y = problem(2000, 2)
        ours = nll(VectorScaling().fit(z, y).transform(z), y)
        log_odds = (z[:, 1:] - z[:, :1]).numpy()
        platt = LogisticRegression(C=np.inf, tol=1e-10).fit(log_odds, y.numpy())
        assert ours == pytest.approx(floored_nll(platt.predict_proba(log_odds), y), abs=1e-5)
        theirs = netcal.scaling.LogisticCalibration()
        theirs.fit(probabilities(z)[:, 1], y.numpy())
        second = np.asarray(theirs.transform(probabilities(z)[:, 1]), dtype=np.float64).reshape(-1)
        assert ours == pytest.approx(floored_nll(np.stack((1 - second, second), 1), y), abs=1e-3)

    def test_bbq_is_the_bayesian_mean_by_hand(self):
        """Two models for eight samples; every figure of Naeini et al. written out."""
        p = np.array([0.05, 0.1, 0.2, 0.3, 0.6, 0.7, 0.8, 0.9])
        hit = np.array([0, 0, 1, 0, 1, 1, 0, 1.0])
        apply = BayesianBinning(strength=2.0, spread=1.0)._fit_class(p, hit)  # n^(1/3) = 2: two bins, exactly
        edge = (0.3 + 0.6) / 2
        low, high = edge / 2, (edge + 1) / 2
        assert apply(np.array([0.2, 0.7])) == pytest.approx([(1 + low) / 5, (3 + high) / 5])
        apply = BayesianBinning(strength=2.0, spread=2.0)._fit_class(p, hit)  # one to four bins
        mean, total = np.zeros(2), 0.0
        for bins in (1, 2, 3, 4):
            inner = [(p[k * 8 // bins - 1] + p[k * 8 // bins]) / 2 for k in range(1, bins)]
            ends, evidence, values = [0.0, *inner, 1.0], 0.0, []
            for lower, upper in pairwise(ends):
                inside = hit[(p > lower) & (p <= upper)]
                a, b = 2 / bins * (lower + upper) / 2, 2 / bins * (1 - (lower + upper) / 2)
                k = inside.sum()
                evidence += betaln(k + a, len(inside) - k + b) - betaln(a, b)
                values.append((k + a) / (len(inside) + a + b))
            mean += math.exp(evidence) * np.array([values[np.searchsorted(inner, x)] for x in (0.2, 0.7)])
            total += math.exp(evidence)
        assert apply(np.array([0.2, 0.7])) == pytest.approx(mean / total)

    def test_bbq_finds_the_true_probabilities_and_is_no_worse_than_netcals(self):
        """netcal takes bins of equal width and the BIC in place of the evidence, so they agree in the limit only."""
        z, y = problem(20000, 2, skew=0.0)
        theirs = netcal.binning.BBQ()
        theirs.fit(probabilities(z)[:, 1], y.numpy())
        ours = BayesianBinning().fit(z, y)
        test_z, test_y = problem(20000, 2, seed=1, skew=0.0)
        second = theirs.transform(probabilities(test_z)[:, 1])
        found = nll(ours.transform(test_z), test_y)
        # the labels were drawn from z / 2.5; some 15 bins on n samples cost about 15 log(n) / (2 n) = 4e-3
        assert found == pytest.approx(nll(test_z / 2.5, test_y), abs=4e-3)
        assert found <= floored_nll(np.stack((1 - second, second), 1), test_y) + 1e-3


class TestOptimality:
    @pytest.mark.parametrize("name", AFFINE)
    @pytest.mark.parametrize(("n", "classes"), [(30, 3), (500, 10), (3000, 4)])
    def test_the_calibration_set_itself_is_never_worse_than_under_temperature_scaling(self, name, n, classes):
        z, y = problem(n, classes)
        scaled = nll(TemperatureScaling().fit(z, y).transform(z), y)
        assert scaled <= nll(z, y)
        assert nll(calibrator(name).fit(z, y).transform(z), y) <= scaled + 1e-12

    @pytest.mark.parametrize("name", AFFINE)
    @pytest.mark.parametrize(("n", "classes"), [(30, 3), (500, 10)])
    def test_the_gradient_vanishes_by_autograd(self, name, n, classes):
        z, y = problem(n, classes)
        fitted = calibrator(name).fit(z, y)
        assert isinstance(fitted, AffineCalibrator)
        x = fitted._scaled(z)
        eye = torch.eye(classes, dtype=torch.float64)
        weight, bias = fitted.weight.clone().requires_grad_(), fitted.bias.clone().requires_grad_()
        on_weight, on_bias = fitted._penalty(eye)
        free = on_weight.isfinite()
        loss = torch.nn.functional.cross_entropy(x @ weight.T + bias, y) + (on_bias * bias.square()).sum()
        loss = loss + (on_weight * (weight - eye).square())[free].sum()
        loss.backward()
        assert float(weight.grad[free].abs().max()) < 1e-6
        assert float(bias.grad.abs().max()) < 1e-6
        assert (fitted.weight[~free] == 0).all()

    @pytest.mark.parametrize("name", AFFINE)
    @pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
    def test_the_fit_is_the_same_where_gradients_are_off(self, name, context):
        z, y = problem(200, 3)
        expected = calibrator(name).fit(z, y).transform(z)
        with context():
            found = calibrator(name).fit(z.clone(), y.clone()).transform(z)
        assert torch.equal(found, expected)
        assert not found.requires_grad

    def test_a_penalty_pulls_to_temperature_scaling(self):
        z, y = problem(300, 4)
        fitted = MatrixScaling(odir=1e8).fit(z, y)
        assert torch.allclose(fitted.weight, torch.diag(fitted.weight.diagonal()), atol=1e-6)
        assert RIDGE < 1e-5


class TestInvariances:
    @pytest.mark.parametrize("name", FITTED)
    def test_a_constant_on_every_row_changes_nothing(self, name):
        z, y = problem(200, 4)
        shift = torch.randn(200, 1, dtype=torch.float64)
        plain, shifted = (calibrator(name).fit(v, y).transform(v).softmax(1) for v in (z, z + shift))
        assert torch.allclose(plain, shifted, atol=1e-6)

    @pytest.mark.parametrize("name", FITTED)
    def test_permuting_the_classes_commutes(self, name):
        z, y = problem(200, 4)
        order = torch.tensor([2, 0, 3, 1])
        plain = calibrator(name).fit(z, y).transform(z).softmax(1)
        permuted = calibrator(name).fit(z[:, order], order.argsort()[y]).transform(z[:, order]).softmax(1)
        assert torch.allclose(plain[:, order], permuted, atol=1e-6)

    @pytest.mark.parametrize("name", ["temperature", "vector", "matrix"])
    def test_the_unit_of_the_logits_does_not_matter(self, name):
        z, y = problem(200, 4)
        plain, scaled = (calibrator(name).fit(v, y).transform(v).softmax(1) for v in (z, 1e-3 * z))
        assert torch.allclose(plain, scaled, atol=1e-6)

    @pytest.mark.parametrize("name", CALIBRATORS)
    def test_probabilities_sum_to_one_and_are_float64(self, name):
        z, y = problem(100, 6)
        u = calibrator(name).fit(z.float(), y).transform(z.float())
        assert u.dtype == torch.float64
        assert torch.allclose(u.softmax(1).sum(1), torch.ones(100, dtype=torch.float64))

    def test_temperature_keeps_the_order_and_divides_every_margin_by_itself(self):
        z, y = problem(300, 5)
        scaling = TemperatureScaling().fit(z, y)
        u = scaling.transform(z)
        assert (u.argsort(1) == z.argsort(1)).all()
        # so that margin / constant, the radius, is invariant: the constant is divided by T too
        assert torch.allclose(u - u[:, :1], (z - z[:, :1]) / scaling.temperature)

    def test_isotonic_maps_are_monotone(self):
        z, y = problem(500, 3)
        grid = np.linspace(0, 1, 1001)
        for apply in IsotonicCalibration().fit(z, y)._maps:
            assert (np.diff(apply(grid)) >= 0).all()

    def test_bins_of_equal_mass_hold_equally_many(self):
        z, y = problem(1000, 2)
        p = probabilities(z)[:, 1]
        values = HistogramBinning(bins=10, equal_mass=True).fit(z, y)._maps[1](p)
        shares, counts = np.unique(values, return_counts=True)
        assert counts.sum() == 1000
        assert (counts % 100 == 0).all()
        assert (np.round(shares * 100, 9) % 1 == 0).all()


@pytest.mark.parametrize("name", FITTED)
def test_calibrated_logits_stay_nearly_as_they_are(name):
    rng = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(40000, 3, generator=rng, dtype=torch.float64)
    y = torch.multinomial(z.softmax(1), 1, generator=rng).squeeze(1)
    fitted = calibrator(name).fit(z, y) if name != "histogram" else HistogramBinning(bins=50).fit(z, y)
    moved = (fitted.transform(z).softmax(1) - z.softmax(1)).abs()
    assert float(moved.mean()) < 0.01


class TestEdges:
    @pytest.mark.parametrize("name", CALIBRATORS)
    @pytest.mark.parametrize(
        ("z", "y"),
        [
            ([[1.0, 2.0, 3.0]], [0]),  # a single sample, wrong
            ([[1.0, 2.0, 3.0]], [2]),  # a single sample, right
            ([[0.0, 0.0, 0.0]] * 4, [0, 1, 2, 0]),  # constant
            ([[5.0, 1.0, 0.0], [4.0, 6.0, 0.0], [1.0, 3.0, 0.0]], [0, 1, 1]),  # class 2 is missing; separable
            ([[1e4, 0.0, 0.0], [0.0, 1e4, 0.0], [1e4, 0.0, 0.0]], [0, 1, 1]),  # probabilities 0 and 1
            ([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0]], [1, 0]),  # always wrong
        ],
    )
    def test_degenerate_sets_give_finite_log_probabilities(self, name, z, y):
        fitted = calibrator(name).fit(torch.tensor(z), torch.tensor(y))
        unseen = torch.tensor([[0.0, 1.0, 2.0], [-1e3, 0.0, 1e3], [0.0, 0.0, 0.0]])
        for logits in (torch.tensor(z), unseen):
            assert fitted.transform(logits).isfinite().all()
            assert fitted.transform(logits).log_softmax(1).isfinite().all()

    def test_no_better_than_chance_is_told_apart_by_the_biases_only(self):
        z, y = torch.zeros(10, 2), torch.tensor([0] * 8 + [1] * 2)
        assert TemperatureScaling().fit(z, y).temperature == math.inf
        assert VectorScaling().fit(z, y).transform(z).softmax(1)[0, 0] == pytest.approx(0.8, abs=1e-3)

    @pytest.mark.parametrize("name", CALIBRATORS)
    def test_no_samples_to_transform_are_no_samples(self, name):
        z, y = problem(20, 3)
        assert calibrator(name).fit(z, y).transform(z[:0]).shape == (0, 3)

    @pytest.mark.parametrize(
        ("logits", "labels", "words"),
        [
            (torch.zeros(3), torch.zeros(3, dtype=torch.long), r"logits \(3,\)"),
            (torch.zeros(3, 1), torch.zeros(3, dtype=torch.long), "C >= 2"),
            (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), "N >= 1"),
            (torch.zeros(3, 2), torch.zeros(2, dtype=torch.long), r"labels \(2,\)"),
            (torch.zeros(3, 2), torch.zeros(3), "integer labels, got torch.float32"),
            (torch.zeros(3, 2), torch.tensor([0, 1, 2]), "got 2 in row 2"),
            (torch.tensor([[0.0, 1.0], [math.nan, 0.0]]), torch.tensor([0, 1]), "row 1"),
        ],
    )
    def test_bad_input_is_named(self, logits, labels, words):
        with pytest.raises(UserError, match=words):
            TemperatureScaling().fit(logits, labels)

    def test_the_order_of_calls_and_the_number_of_classes_are_checked(self):
        z, y = problem(20, 3)
        with pytest.raises(UserError, match="VectorScaling is not fitted"):
            VectorScaling().transform(z)
        with pytest.raises(UserError, match=r"\(N, 3\) as in fit, got \(20, 2\)"):
            VectorScaling().fit(z, y).transform(z[:, :2])
        with pytest.raises(UserError, match="known: none, temperature"):
            calibrator("platt")
        with pytest.raises(UserError, match="got 0"):
            HistogramBinning(bins=0)
        with pytest.raises(UserError, match="got -1"):
            MatrixScaling(odir=-1)


def test_compare_fits_on_the_calibration_part_only_and_finds_the_calibrated():
    z, y = problem(2000, 4, skew=0.0)
    test_z, test_y = problem(20_000, 4, seed=1, skew=0.0)
    rows = {row.name: row for row in compare(z, y, test_z, test_y)}
    assert list(rows) == list(CALIBRATORS)
    assert rows["none"].calibrated is False
    assert rows["temperature"].calibrated is True
    assert rows["temperature"].accuracy == rows["none"].accuracy == accuracy(test_z, test_y)
    assert all(row.nll < rows["none"].nll for name, row in rows.items() if name not in ("none", "histogram"))
    assert [row.name for row in rows.values() if row.keeps_radii] == ["none", "temperature"]
    # whatever the test part is, the same map was fitted
    (row,) = compare(z, y, test_z[:50], test_y[:50], names=["vector"])
    assert row.nll == pytest.approx(nll(VectorScaling().fit(z, y).transform(test_z[:50]), test_y[:50]))
