"""Outlier scores: other libraries' are the same, AUROC is scikit-learn's, and no attack leaves a certified range."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torch import nn

from conftest import part_of
from lipscale import models, set_lipschitz
from lipscale.attacks.apgd import apgd
from lipscale.certificates import OutlierScores, prove
from lipscale.certificates.outliers import SCORES, outputs_of
from lipscale.metrics.ranking import auc_interval, auc_of, false_positive_rate
from makers import refuses


def scores_of(net, shape, n=60, classes=4):
    """The scores of a network with class means from random samples, and other samples."""
    samples = torch.rand(n, *shape)
    return OutlierScores.of(prove(net, shape), samples, torch.arange(n) % classes), torch.rand(n, *shape)


@pytest.fixture
def scores():
    net = models.mlp(4, 12, 16)
    set_lipschitz(net, 6.0)
    return scores_of(net, (12,))


def two_sets(seed, *, n=80, m=50, ties=False):
    generator = torch.Generator().manual_seed(seed)
    inside = torch.randn(n, generator=generator, dtype=torch.float64) + 1
    outside = torch.randn(m, generator=generator, dtype=torch.float64)
    return (inside.round(), outside.round()) if ties else (inside, outside)


class TestRanking:
    @pytest.mark.parametrize("ties", [False, True])
    def test_auroc_and_fpr95_are_scikit_learns(self, ties):
        for seed in range(10):
            inside, outside = two_sets(seed, ties=ties)
            truth = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
            values = torch.cat((inside, outside)).numpy()
            assert auc_of(inside, outside) == pytest.approx(roc_auc_score(truth, values), abs=1e-12)
            false, true, _ = roc_curve(truth, values, drop_intermediate=False)
            assert false_positive_rate(inside, outside) == pytest.approx(false[true >= 0.95][0], abs=1e-12)

    def test_both_are_pytorch_oods(self):
        theirs = part_of("pytorch_ood", "metrics", "functional")
        inside, outside = two_sets(0, ties=True)
        # there positives are outliers with a large score; here inliers with one
        values, labels = torch.cat((inside, outside)), torch.cat((-torch.ones(len(inside)), torch.ones(len(outside))))
        assert auc_of(inside, outside) == pytest.approx(float(theirs.auroc(values, labels)), abs=1e-12)
        assert false_positive_rate(inside, outside) == pytest.approx(float(theirs.fpr_at_tpr(values, labels, 0.95)))

    def test_the_interval_holds_the_true_auroc_in_95_percent_of_all_cases(self):
        true = float(torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(1 / 2**0.5)))
        found = [auc_interval(*two_sets(seed)) for seed in range(400)]
        assert 0.92 <= np.mean([low <= true <= high for low, high in found]) <= 0.975

    def test_sets_that_are_apart_and_equal_ones(self):
        a = torch.arange(10.0)
        assert (auc_of(a + 20, a), false_positive_rate(a + 20, a)) == (1.0, 0.0)
        assert auc_of(a, a) == 0.5


class TestScores:
    @pytest.mark.parametrize(
        ("name", "module", "kind"),
        [
            ("energy", "energy", "EnergyBased"),
            ("logit", "maxlogit", "MaxLogit"),
            ("probability", "softmax", "MaxSoftmax"),
        ],
    )
    def test_they_are_pytorch_oods(self, scores, name, module, kind):
        theirs = getattr(part_of("pytorch_ood", "detector", module), kind)(None)
        made, inputs = scores
        logits = made.proof(inputs).logits
        ours = made(inputs)[name]
        torch.testing.assert_close(ours.sigmoid() if name == "probability" else ours, -theirs.predict_logits(logits))

    def test_the_distance_is_that_to_the_nearest_class_mean(self, scores):
        made, inputs = scores
        features = made.proof.net[:-1](inputs.double()).detach().numpy()
        away = np.linalg.norm(features[:, None] - made.means.numpy(), axis=2).min(1)
        np.testing.assert_allclose(made(inputs)["distance"].numpy(), -away, rtol=1e-12)

    def test_a_network_without_a_linear_head_is_measured_by_its_logits(self):
        net = nn.Sequential(models.mlp(4, 12, 16), nn.Identity())
        made, inputs = scores_of(net, (12,))
        assert torch.equal(*outputs_of(made.proof.net, inputs.double()))
        assert made.bound == made.proof.bound

    def test_a_class_without_a_sample_is_one_line(self):
        net, inputs = models.mlp(4, 12, 16), torch.rand(6, 12)
        refuses(lambda: OutlierScores.of(prove(net, (12,)), inputs, torch.arange(6) % 3), "all 4 classes, got 3")


class TestRanges:
    @pytest.mark.parametrize("epsilon", [0.01, 0.2])
    @pytest.mark.parametrize("kind", ["mlp", "patchnet"])
    def test_no_attack_leaves_them(self, kind, epsilon):
        shape = (12,) if kind == "mlp" else (1, 8, 8)
        net = models.mlp(4, 12, 16) if kind == "mlp" else models.patchnet(4, 1, 4, image_size=8)
        set_lipschitz(net, 6.0)
        made, inputs = scores_of(net, shape)
        clean, search = made(inputs), made.differentiable()
        ranges = made.ranges(inputs, clean, epsilon)
        radius = torch.full((len(inputs),), epsilon * 0.9999)
        for name in SCORES:
            lowest, highest = ranges[name]
            assert (lowest <= clean[name]).all()
            assert (clean[name] <= highest).all()
            for sign in (-1, 1):
                points = apgd(
                    lambda x, s=sign, n=name: s * made.score(n)(outputs_of(search, x)), inputs, radius, steps=15
                )
                found = made(points)[name]
                assert ((lowest <= found) & (found <= highest)).all()
                assert float((sign * (found - clean[name])).mean()) > 0.05 * epsilon  # and it does move them

    def test_they_are_reached_by_a_linear_network(self):
        net = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3))
        nn.init.orthogonal_(net[0].weight)
        nn.init.orthogonal_(net[1].weight)
        proof = prove(net, (6,), even_unconstrained=True)
        made = OutlierScores.of(proof, torch.randn(30, 6), torch.arange(30) % 3)
        inputs = torch.randn(20, 6)
        clean = made(inputs)
        top = clean["logit"]
        slope = (net[1].weight @ net[0].weight)[made.proof(inputs).logits.argmax(1)].detach()
        moved = made(inputs + 0.3 * slope)["logit"]
        torch.testing.assert_close(moved, top + 0.3, rtol=0, atol=1e-5)
        torch.testing.assert_close(made.ranges(inputs, clean, 0.3)["logit"][1], top + 0.3, rtol=0, atol=1e-5)
