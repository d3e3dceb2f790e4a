"""Attacks on uncertainty beside what is certified."""

import math

import pytest
import torch
from torch import nn

from lipscale import models
from lipscale.attacks import UNCERTAINTY_ATTACKS
from lipscale.certificates import attack_samples, attack_uncertainty, certify, prove, uncertainty
from lipscale.certificates.uncertainty import Uncertainty
from lipscale.data import Samples
from lipscale.errors import UnsoundError, UserError

METRICS = ("ece", "nll", "aurc", "selective_risk")


def test_metrics_before_and_after_stay_below_the_worst_case(digits_net, digits):
    found = attack_uncertainty(digits_net, attack_samples(digits.test, 150), epsilons=(0.05, 0.3), steps=10, box=(0, 1))
    assert found.samples == 150
    for row in found.at.values():
        assert list(row.attacked) == list(UNCERTAINTY_ATTACKS)
        for measured in row.attacked.values():
            assert all(getattr(measured, name) <= getattr(row.certified, name) for name in METRICS)
    strong = found.at["0.3"].attacked
    assert strong["loss"].nll > found.clean.nll + 0.1
    assert strong["maximum"].aurc > found.clean.aurc
    assert strong["maximum"].ece > found.clean.ece
    assert strong["under"].confidence < strong["ace"].confidence < found.clean.confidence < strong["over"].confidence
    assert all(strong[name].accuracy == found.clean.accuracy for name in ("ace", "over", "under", "maximum"))


def test_what_is_measured_is_what_the_points_say(digits_net, digits):
    samples = attack_samples(digits.test, 40)
    found = attack_uncertainty(digits_net, samples, epsilons=(0.2,), attacks=["ace"], box=(0, 1)).at["0.2"]
    points = UNCERTAINTY_ATTACKS["ace"](digits_net, samples.inputs, samples.labels, epsilon=0.2, box=(0, 1))
    expected = Uncertainty.of(certify(digits_net, points).logits, samples.labels)
    assert vars(found.attacked["ace"]) == pytest.approx(vars(expected), abs=1e-9)


def test_no_attacked_sample_beats_its_certificate_in_five_thousand_attacks(digits_net, digits):
    """An UnsoundError would end it; the attacks are real ones, which move every metric."""
    epsilons = (0.05, 0.25)
    found = attack_uncertainty(digits_net, digits.test, epsilons=epsilons, box=(0, 1), seed=1)
    assert found.samples * len(epsilons) * len(UNCERTAINTY_ATTACKS) >= 5000
    strong = found.at["0.25"].attacked
    for name in METRICS:
        assert max(getattr(row, name) for row in strong.values()) > getattr(found.clean, name)


@pytest.mark.parametrize("name", ["ace", "over", "under", "high-entropy", "loss"])
def test_a_certificate_that_an_attack_breaks_is_an_error(lying_net, digits, name):
    x = digits.test.inputs[:50]
    samples = Samples(x, lying_net(x).argmax(1))
    with pytest.raises(UnsoundError, match=f"broken at epsilon 0.5 by the {name} attack: .* Do not rely"):
        attack_uncertainty(lying_net, samples, epsilons=(0.5,), attacks=[name])


def test_a_metric_beyond_its_worst_case_is_an_error_by_itself(lying_net, digits, monkeypatch):
    """Also where no single sample gave it away."""
    x = digits.test.inputs[:50]
    honest = uncertainty._joined

    def blind(batches):
        return {kind: type(h)(h.logits, h.distance, torch.zeros_like(h.broken)) for kind, h in honest(batches).items()}

    monkeypatch.setattr(uncertainty, "_joined", blind)
    with pytest.raises(UnsoundError, match="the nll is .*, and proven to be at most"):
        attack_uncertainty(lying_net, Samples(x, lying_net(x).argmax(1)), epsilons=(0.5,), attacks=["loss"])


def test_nothing_is_proven_of_an_unconstrained_network(digits):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    found = attack_uncertainty(net, attack_samples(digits.test, 20), epsilons=(0.3,), attacks=["ace"])
    assert found.at["0.3"].certified is None
    assert math.isinf(prove(net, (1, 8, 8)).bound)


def test_bad_names_and_epsilons_are_refused(digits_net, digits):
    with pytest.raises(UserError, match=r"unknown attack 'aces'; known: ace, over"):
        attack_uncertainty(digits_net, digits.test, epsilons=(0.1,), attacks=["aces"])
    with pytest.raises(UserError, match="epsilon > 0"):
        attack_uncertainty(digits_net, digits.test, epsilons=(0.0,))


def test_an_attack_on_convolutions_is_held_too():
    torch.manual_seed(0)
    net, x = models.patchnet(3, 1, 8, image_size=8, depth=1).eval(), torch.rand(12, 1, 8, 8)
    found = attack_uncertainty(net, Samples(x, torch.arange(12) % 3), epsilons=(0.3,), steps=5, box=(0, 1))
    assert found.at["0.3"].certified.nll > found.clean.nll
