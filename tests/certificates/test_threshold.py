"""Answers by a threshold: their radii are exact where the truth is known, and no attack breaks them."""

import math

import pytest
import torch
from torch import nn

from lipscale import certify, set_lipschitz
from lipscale.attacks import pgd
from lipscale.attacks.ball import distances
from lipscale.certificates import Attack, Threshold, attack_samples, decided, measure_robustness, prove
from lipscale.certificates.threshold import Shifted
from lipscale.data import Samples
from lipscale.errors import UserError
from lipscale.models import mlp

SOME = (Threshold(0.2), Threshold(0.9), Threshold(1e-6, positive=0), Threshold(0.7, positive=0))


@pytest.fixture(scope="module")
def two():
    """A network of two classes, and inputs on both sides."""
    torch.manual_seed(3)
    net = mlp(2, 6, 16)
    set_lipschitz(net, 5.0)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    x = torch.randn(400, 6)
    y = (x[:, 0] + 0.3 * x[:, 1].square() > 0.5).long()
    for _ in range(25):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.eval(), x, y


@pytest.mark.parametrize("threshold", SOME)
def test_the_class_is_answered_from_the_probability_on(two, threshold):
    net, x, _ = two
    certificate = certify(net, x)
    p = certificate.logits.softmax(1)[:, threshold.positive]
    assert torch.equal(decided(certificate, threshold)[0] == threshold.positive, p >= threshold.probability)


@pytest.mark.parametrize("threshold", SOME)
def test_the_radius_of_a_linear_network_is_the_distance_to_its_boundary(threshold):
    torch.manual_seed(1)
    net, x = nn.Linear(5, 2).double(), torch.randn(200, 5)
    certificate = certify(nn.Sequential(net), x, even_unconstrained=True)
    k, j = threshold.positive, 1 - threshold.positive
    slope, offset = (net.weight[k] - net.weight[j]).detach(), (net.bias[k] - net.bias[j]).detach()
    margin = x.double() @ slope + offset - math.log(threshold.probability / (1 - threshold.probability))
    torch.testing.assert_close(threshold.radius(certificate), margin.abs() / slope.norm(), rtol=1e-8, atol=1e-8)
    assert (threshold.radius(certificate) <= margin.abs() / slope.norm()).all()


def test_one_half_is_no_threshold_at_all(two):
    net, x, _ = two
    certificate = certify(net, x)
    answers, radii = decided(certificate, Threshold(0.5))
    assert torch.equal(answers, decided(certificate)[0])
    torch.testing.assert_close(radii, certificate.radius(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("threshold", SOME)
def test_no_attack_changes_the_answer_within_its_radius_and_some_do_just_beyond(two, threshold):
    net, x, _ = two
    proof = prove(net, (6,))
    answers, radii = decided(proof(x), threshold)
    reached = 0
    for epsilon in radii.quantile(torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64)).tolist():
        found = pgd(Shifted(net, threshold), x, answers, epsilon=epsilon, steps=20, restarts=2)
        changed = threshold.answers(proof(found).logits) != answers
        assert not (changed & (distances(found, x) <= radii)).any()
        reached += int(changed.sum())
    assert reached > 20  # the search finds what there is to find


def test_robustness_is_that_of_the_answer_with_the_threshold(two):
    net, x, y = two
    samples = attack_samples(Samples(x, y), 100)
    how = {"epsilons": (0.05, 0.3), "attack": Attack(steps=10, restarts=2), "box": None}
    plain = measure_robustness(net, samples, **how)
    bold = measure_robustness(net, samples, **how, threshold=Threshold(0.05))
    answers, radii = decided(certify(net, samples.inputs), Threshold(0.05))
    right = answers == samples.labels
    assert bold.accuracy == pytest.approx(float(right.double().mean()))
    assert bold.accuracy != plain.accuracy
    for eps, row in bold.at.items():
        assert row.certified_accuracy == pytest.approx(float((right & (radii >= float(eps))).double().mean()))
        assert row.certified_accuracy <= row.robust_accuracy <= bold.accuracy
        assert row.calibration == plain.at[eps].calibration  # probabilities know no threshold


def test_a_row_does_not_depend_on_its_neighbours(two):
    net, x, _ = two
    whole, alone = (Threshold(0.3).radius(certify(net, part)) for part in (x, x[7:8]))
    torch.testing.assert_close(whole[7:8], alone, rtol=1e-12, atol=0)


def test_bad_thresholds_are_named(two):
    for value in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(UserError, match="between 0 and 1"):
            Threshold(value)
    with pytest.raises(UserError, match="two classes, and the run has 3"):
        Threshold.of(("a", "b", "c"), 0.5)
    with pytest.raises(UserError, match="expected 'a' or 'b', got 'z'"):
        Threshold.of(("a", "b"), 0.5, "z")
    with pytest.raises(UserError, match="two classes"):
        Threshold(0.5).answers(torch.zeros(4, 3))
    assert Threshold.of(("a", "b"), 0.25, "a") == Threshold(0.25, positive=0)
    rarer = [Threshold.of(("a", "b"), 0.25, counts=counts).positive for counts in ((), (1, 9), (9, 1), (5, 5))]
    assert rarer == [1, 0, 1, 1]
    assert Threshold.of(("a", "b"), 0.25, "b", counts=(1, 9)).positive == 1
