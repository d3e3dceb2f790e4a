"""Conformal sets: other libraries make the same ones, coverage is what is promised, robust sets hold what they must."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.base import BaseEstimator, ClassifierMixin

from conftest import part_of
from lipscale import Certificate, certify, models, set_lipschitz
from lipscale.attacks.apgd import apgd
from lipscale.attacks.ball import project
from lipscale.certificates import ConformalScore, ConformalSets
from lipscale.certificates.affine import Affine
from lipscale.certificates.conformal import box_lowest, expected_coverage, misses, quantile
from lipscale.certificates.probabilities import highest_log_odds, log_odds, lowest_log_odds
from lipscale.errors import UserError
from lipscale.metrics.intervals import exact_interval
from makers import refuses

SCORES = [ConformalScore(name) for name in ("threshold", "class-conditional", "aps", "raps")]


def draw(n, *, classes=6, seed=0, spread=2.0):
    """Logits, and labels drawn from their softmax."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return logits, labels, torch.rand(n, generator=generator, dtype=torch.float64)


def around(logits, bound=1.0):
    """A certificate of these logits, with sqrt(2) B for every pair and without rounding."""
    classes = logits.shape[1]
    pairwise = torch.full((classes, classes), math.sqrt(2) * bound, dtype=torch.float64).fill_diagonal_(0.0)
    return Certificate(bound, pairwise, logits, torch.zeros(len(logits)).double(), Affine(0.0, 0.0))


def covered(sets, labels):
    return float(sets.gather(1, labels.unsqueeze(1)).double().mean())


class Probabilities(ClassifierMixin, BaseEstimator):
    """A classifier for MAPIE whose inputs are the probabilities."""

    def fit(self, X, y):
        self.classes_ = np.arange(X.shape[1])
        return self

    def predict_proba(self, X):
        return np.asarray(X)

    def predict(self, X):
        return np.asarray(X).argmax(1)


class TestOracles:
    @pytest.mark.parametrize(("name", "theirs"), [("threshold", "lac"), ("aps", "aps")])
    @pytest.mark.parametrize("alpha", [0.05, 0.1, 0.29])
    def test_the_sets_are_mapies(self, name, theirs, alpha):
        mapie = pytest.importorskip("mapie.classification", reason="needs mapie")
        (cal, labels, _), (test, _, _) = draw(500), draw(400, seed=1)
        p, q = (logits.softmax(1).numpy() for logits in (cal, test))
        oracle = mapie.SplitConformalClassifier(
            Probabilities().fit(p, None), 1 - alpha, conformity_score=theirs, prefit=True, random_state=3
        ).conformalize(p, labels.numpy())
        how = {"conformity_score_params": {"include_last_label": "randomized"}} if name == "aps" else {}
        draws = [torch.from_numpy(np.random.RandomState(3).uniform(size=n)) for n in (len(p), len(q))]
        made = ConformalSets.calibrate(cal, labels, alpha=alpha, score=ConformalScore(name), draws=draws[0])
        theirs = torch.from_numpy(oracle.predict_set(q, **how)[1].reshape(test.shape))
        assert torch.equal(made.sets(test, draws[1]), theirs)

    @pytest.mark.parametrize("score", [ConformalScore("aps"), ConformalScore("raps", 0.2, 2)])
    def test_the_scores_are_torchcps(self, score):
        module = part_of("torchcp", "classification", "score", score.name)
        how = {"penalty": score.penalty, "kreg": score.free} if score.name == "raps" else {}
        oracle = getattr(module, score.name.upper())(randomized=False, **how)
        logits = draw(300)[0]
        torch.testing.assert_close(score.of(logits), oracle(logits), rtol=0, atol=1e-14)

    def test_the_class_conditional_sets_are_crepes(self):
        crepes = pytest.importorskip("crepes", reason="needs crepes")
        (cal, labels, _), (test, _, _) = draw(600), draw(300, seed=1)
        scores = [-log_odds(logits).numpy() for logits in (cal, test)]
        own = scores[0][np.arange(len(cal)), labels.numpy()]
        oracle = crepes.ConformalClassifier().fit(own, bins=labels.numpy())
        made = ConformalSets.calibrate(cal, labels, alpha=0.15, score=ConformalScore("class-conditional")).sets(test)
        for k in range(test.shape[1]):
            p = oracle.predict_p(scores[1][:, [k]], bins=np.full(len(test), k), smoothing=False)
            assert (made[:, k].numpy() == (p[:, 0] > 0.15)).all()

    def test_the_interval_is_scipys(self):
        for hits, samples in ((0, 7), (3, 7), (7, 7), (900, 1000)):
            theirs = binomtest(hits, samples).proportion_ci(0.95, method="exact")
            assert exact_interval(hits, samples) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


class TestCoverage:
    def test_the_quantile_by_hand(self):
        p = torch.tensor([0.9, 0.2, 0.5, 0.7])  # floor(0.4 * 5) = 2: the second smallest
        assert float(-quantile(-p, 0.4)) == pytest.approx(0.5)
        assert misses(29, 0.1) == 3  # in floats 0.1 * 30 is more, and 0.29 * 100 less
        assert misses(99, 0.29) == 29

    @pytest.mark.parametrize("score", SCORES, ids=lambda score: score.name)
    def test_it_is_one_minus_alpha_over_calibrations(self, score):
        found = []
        for seed in range(150):
            logits, labels, draws = draw(400, classes=3, seed=seed)
            made = ConformalSets.calibrate(logits[:200], labels[:200], alpha=0.2, score=score, draws=draws[:200])
            found.append(covered(made.sets(logits[200:], draws[200:]), labels[200:]))
        error = np.std(found) / math.sqrt(len(found))
        assert 0.8 - 3 * error <= np.mean(found) <= 0.82 + 3 * error

    def test_the_expected_range_holds_95_percent_of_all_cases(self):
        low, high = expected_coverage(100, 50, 0.2)
        scores = torch.rand(4000, 150, generator=torch.Generator().manual_seed(0))
        limits = scores[:, :100].kthvalue(101 - misses(100, 0.2), dim=1, keepdim=True).values
        shares = (scores[:, 100:] <= limits).double().mean(1)
        assert 0.945 <= float(((shares >= low) & (shares <= high)).double().mean()) <= 0.985  # steps of 0.02

    def test_an_unhelpful_request_is_one_line(self):
        logits, labels, _ = draw(30)
        for alpha in (0.0, 1.0, -0.1, math.nan):
            refuses(lambda alpha=alpha: ConformalSets.calibrate(logits, labels, alpha=alpha), "between 0 and 1")
        refuses(
            lambda: ConformalSets.calibrate(logits, labels, alpha=0.01), "takes 99 held-out samples", "there are 30"
        )
        per_class = ConformalScore("class-conditional")
        refuses(
            lambda: ConformalSets.calibrate(logits, labels, alpha=0.05, score=per_class),
            "19 held-out samples of class '0'",
        )
        refuses(lambda: ConformalScore("lac"), "threshold, class-conditional, aps, raps", "'lac'")
        refuses(lambda: ConformalScore("raps", -1.0), "at least 0")


class TestRobust:
    @pytest.mark.parametrize("reach", [0.01, 0.5, 2.0, 8.0])
    @pytest.mark.parametrize("classes", [2, 3, 10])
    def test_the_highest_log_odds_are_the_maximum_over_the_ball(self, reach, classes):
        logits = draw(40, classes=classes)[0]
        highest = highest_log_odds(around(logits), reach)
        for k in {0, 1, classes - 1}:
            x = logits.clone()
            for step in range(250):  # concave: plain ascent finds the maximum
                x.requires_grad_()
                (slope,) = torch.autograd.grad(log_odds(x)[:, k].sum(), x)
                x = project(x.detach() + reach / (1 + step) ** 0.5 * slope, logits, torch.tensor(reach))
            found = log_odds(x)[:, k]
            assert (found <= highest[:, k]).all()
            torch.testing.assert_close(found, highest[:, k], rtol=0, atol=2e-3)

    def test_it_is_never_above_the_pairs_nor_these_above_the_box(self):
        logits = draw(200, classes=10)[0]
        for eps in (0.0, 0.1, 1.0, 5.0):
            highest, plain = highest_log_odds(around(logits), eps), log_odds(logits)
            by_pairs = plain + math.sqrt(2) * eps + 1e-9
            assert (plain <= highest).all()
            assert (highest <= by_pairs).all()
            assert (by_pairs <= -box_lowest(around(logits), eps) + 2e-9).all()
            if eps:
                assert (highest < by_pairs - 0.1 * eps).double().mean() > 0.3  # and is often far below

    def test_two_classes_are_known_exactly(self):
        logits = torch.tensor([[1.0, -0.5]], dtype=torch.float64)
        assert highest_log_odds(around(logits, 3.0), 0.2)[0, 0] == pytest.approx(1.5 + math.sqrt(2) * 0.6, abs=1e-9)
        assert lowest_log_odds(around(logits, 3.0), 0.2)[0, 0] == pytest.approx(1.5 - math.sqrt(2) * 0.6, abs=1e-9)

    @pytest.mark.parametrize("score", SCORES, ids=lambda score: score.name)
    def test_no_point_of_the_ball_has_a_lower_score(self, score):
        logits, _, draws = draw(60)
        for reach in (0.05, 0.5, 3.0):
            lowest = score.lowest(around(logits), reach, draws)
            assert (lowest <= score.of(logits, draws)).all()
            for seed in range(20):
                noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
                moved = logits + reach * noise / noise.norm(dim=1, keepdim=True)
                assert (lowest <= score.of(moved, draws)).all()
            for k in range(logits.shape[1]):  # straight at each score's least
                toward = torch.eye(logits.shape[1], dtype=torch.float64)[k] - logits.softmax(1)
                moved = logits + reach * toward / toward.norm(dim=1, keepdim=True)
                assert (lowest <= score.of(moved, draws))[:, k].all()

    @pytest.mark.parametrize("score", SCORES, ids=lambda score: score.name)
    def test_sets_grow_with_epsilon_from_the_plain_ones(self, score):
        logits, labels, draws = draw(400)
        made = ConformalSets.calibrate(logits, labels, alpha=0.2, score=score, draws=draws)
        before = made.sets(logits, draws)
        for eps in (0.0, 0.1, 0.5, 20.0):
            now = made.robust_sets(around(logits), eps, draws)
            assert (before <= now).all()
            before = now
        assert before.all()

    @pytest.mark.parametrize("score", SCORES, ids=lambda score: score.name)
    def test_no_attack_takes_a_class_out_of_a_robust_set(self, score):
        net = models.mlp(5, 12, 32)
        set_lipschitz(net, 8.0)
        net.eval()
        inputs = torch.rand(80, 12)
        plain = certify(net, inputs)
        draws = torch.rand(80, dtype=torch.float64)
        labels = plain.logits.argmax(1)
        own = torch.nn.functional.one_hot(labels, 5).bool()
        for eps in (0.05, 0.3):
            goal = lambda x: net(x).masked_fill(own, -torch.inf).logsumexp(1) - net(x)[own]  # noqa: E731
            points = apgd(goal, inputs, torch.full((80,), eps * 0.9999), steps=20)
            attacked = certify(net, points)
            assert float((plain.logits - attacked.logits).norm(dim=1).max()) > 2 * eps  # it moves them far
            lowest = score.lowest(attacked, eps, draws)
            assert (lowest <= score.of(plain.logits, draws)).all()  # so whatever the quantile, and for every class

    def test_it_allows_for_rounding_and_refuses_what_is_not_proven(self):
        logits = draw(10)[0]
        known = around(logits)
        rough = Certificate(known.bound, known.pairwise, logits, known.norms, Affine(0.0, 1e-3))
        assert (highest_log_odds(rough, 0.1) > highest_log_odds(known, 0.1) + 1e-3).all()
        unknown = Certificate(math.inf, known.pairwise * math.inf, logits, known.norms, Affine(0.0, 0.0))
        refuses(lambda: highest_log_odds(unknown, 0.1), "no certificate")
        with pytest.raises(UserError, match="epsilon >= 0, got -1"):
            highest_log_odds(known, -1)

    def test_rows_are_by_themselves_and_huge_logits_stay_finite(self):
        logits = torch.cat([draw(50)[0], 1e6 * draw(5)[0]])
        whole = highest_log_odds(around(logits), 0.3)
        assert whole.isfinite().all()
        assert torch.equal(whole[7:8], highest_log_odds(around(logits[7:8]), 0.3))
        assert (whole >= log_odds(logits)).all()
