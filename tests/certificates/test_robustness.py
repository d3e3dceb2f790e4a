"""Robust accuracy and calibration under attack, beside the certificate."""

import pytest
import torch

from lipscale.certificates import Attack, attack_samples, measure_robustness
from lipscale.data import Samples
from lipscale.errors import UnsoundError, UserError
from lipscale.runs.attack_cache import KeptTensors

EPSILONS = (0.1, 0.3, 0.8)
QUICK = Attack(steps=10, restarts=1)


def test_certified_accuracy_empirical_accuracy_and_accuracy_are_in_order(digits_net, digits):
    samples = attack_samples(digits.test, 120)
    result = measure_robustness(digits_net, samples, epsilons=EPSILONS, attack=Attack(), box=(0, 1))
    assert result.samples == 120
    empirical = [row.robust_accuracy for row in result.at.values()]
    for row in result.at.values():
        assert row.certified_accuracy <= row.robust_accuracy <= result.accuracy
        assert row.interval[0] < row.robust_accuracy < row.interval[1]
    assert empirical == sorted(empirical, reverse=True)
    assert empirical[0] > empirical[-1] + 0.2


def test_calibration_attacks_raise_the_ece_and_stay_in_the_proven_range(digits_net, digits):
    samples = attack_samples(digits.test, 120)
    result = measure_robustness(digits_net, samples, epsilons=(0.2,), attack=QUICK, box=(0, 1))
    found = result.at["0.2"].calibration
    low, high = found.certified_confidence
    assert low <= found.under.confidence < found.clean.confidence < found.over.confidence <= high
    assert found.maximum.ece > found.clean.ece


def test_an_inversion_is_an_error_that_names_the_sample(digits, lying_net):
    net, x = lying_net, digits.test.inputs[:50]
    with pytest.raises(UnsoundError, match=r"epsilon 0.5: attacked sample \d+ has certified radius .* at distance"):
        measure_robustness(net, Samples(x, net(x).argmax(1)), epsilons=(0.5,), attack=QUICK, box=None)


def test_a_confidence_outside_its_range_is_an_error(digits, lying_net):
    net, x = lying_net, digits.test.inputs[:50]
    wrong = (net(x).argmax(1) + 1) % 10  # nothing is certified, so only the confidences can give the lie away
    with pytest.raises(UnsoundError, match="certified confidence is broken"):
        measure_robustness(net, Samples(x, wrong), epsilons=(0.5,), attack=QUICK, box=None)


def test_a_finished_attack_is_not_made_again_unless_something_changed(digits_net, digits, tmp_path, monkeypatch):
    samples = attack_samples(digits.test, 40)

    def attack(**changes):
        knobs = {"epsilons": (0.3,), "attack": QUICK, "box": (0, 1), **changes}
        return measure_robustness(digits_net, samples, cache=lambda name: KeptTensors(tmp_path / name), **knobs)

    first = attack()
    monkeypatch.setattr("lipscale.certificates.attacked.pgd", lambda *args, **kwargs: pytest.fail("attacked again"))
    assert attack() == first
    for changes in ({"epsilons": (0.31,)}, {"box": None}, {"attack": Attack(steps=11, restarts=1)}):
        with pytest.raises(pytest.fail.Exception):
            attack(**changes)
    with torch.no_grad():
        weight = next(digits_net.parameters())
        weight.add_(0.001)
        with pytest.raises(pytest.fail.Exception):
            attack()
        weight.sub_(0.001)


def test_the_subset_is_drawn_from_the_whole_set(digits):
    a, b = attack_samples(digits.test, 50), attack_samples(digits.test, 50)
    assert torch.equal(a.inputs, b.inputs)
    assert len(a) == 50
    assert not torch.equal(a.inputs, digits.test.inputs[:50])  # sets may be sorted by class
    assert len(attack_samples(digits.test, 10**6)) == len(digits.test)


def test_an_epsilon_of_zero_is_no_attack(digits_net, digits):
    with pytest.raises(UserError, match="epsilon > 0"):
        measure_robustness(digits_net, digits.test, epsilons=(0.0, 0.1), attack=QUICK, box=None)
