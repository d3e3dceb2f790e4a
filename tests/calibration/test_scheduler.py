"""LipschitzScheduler: the rule, exact projection, a state that JSON holds, and errors that name their cause."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from schedulefree import AdamWScheduleFree
from torch import nn

from conftest import centred
from lipscale import LipschitzScheduler, get_lipschitz, models, set_lipschitz
from lipscale.calibration import fit_temperature, measure_temperature
from lipscale.calibration import scheduler as scheduling
from lipscale.calibration.feedback import PaperFeedback, SteadyFeedback, has_settled
from lipscale.calibration.scheduler import NOTABLE_FALL, scale_moments
from lipscale.errors import UserError
from lipscale.layers import GroupSort2

NETWORKS = {"mlp": lambda: models.mlp(10, (1, 8, 8), 32), "convnet": lambda: models.convnet(10, 1, 4)}


def problem(temperature, *, samples=400, classes=5, seed=0):
    """Logits whose T* is about this one: labels are drawn from softmax(z / T)."""
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, classes, generator=rng)
    labels = torch.multinomial(torch.softmax(logits / temperature, 1), 1, generator=rng).squeeze(1)
    return logits, labels


@pytest.fixture
def net():
    return models.mlp(5, 4, 8).eval()


class TestTheRule:
    def test_the_papers_is_followed_exactly(self, net):
        """L_{e+1} = L_e / T*_e, whatever T* is."""
        scheduler, expected = LipschitzScheduler(net, rule="paper", lipschitz=2.0), 2.0
        for epoch, temperature in enumerate([0.3, 2.5, 0.9, 1.1, 1.0]):
            logits, labels = problem(temperature, seed=epoch)
            expected = expected / fit_temperature(logits, labels)
            assert scheduler.step(logits, labels) == expected  # to the bit
            assert scheduler.constant == scheduler.feedback.constants[-1] == expected
            assert get_lipschitz(net) == pytest.approx(expected, rel=1e-6)
            assert scheduler.last.temperature == fit_temperature(logits, labels)
            assert scheduler.last.temperature_error == measure_temperature(logits, labels).error
            assert scheduler.last.accuracy == pytest.approx(float((logits.argmax(1) == labels).float().mean()))

    @pytest.mark.parametrize("kind", NETWORKS)
    @pytest.mark.parametrize("start", [0.05, 1.0, 30.0])
    def test_after_a_step_of_the_papers_nothing_is_left_to_correct(self, digits, kind, start):
        x, y = digits.train.inputs[:300], digits.train.labels[:300]
        net, optimizer = NETWORKS[kind](), None
        optimizer = torch.optim.Adam(net.parameters(), 5e-3)
        for _ in range(15):
            optimizer.zero_grad()
            F.cross_entropy(4 * net.train()(x), y).backward()
            optimizer.step()
        held_out, labels = digits.test.inputs[:200], digits.test.labels[:200]
        centred(net, x)
        scheduler = LipschitzScheduler(net, rule="paper", lipschitz=start)
        with torch.no_grad():
            before = net(held_out)
            assert abs(fit_temperature(before, labels) - 1) > 0.05  # there is something to correct
            constant = scheduler.step(before, labels)
            after = net(held_out)
        assert fit_temperature(after, labels) == pytest.approx(1, rel=1e-4)
        torch.testing.assert_close(after, before * (constant / start), rtol=1e-4, atol=1e-4 * float(after.abs().max()))

    def test_steady_is_its_feedback_fed_with_the_measured_temperature(self, net):
        scheduler = LipschitzScheduler(net, lipschitz=3.0, epochs=20, ahead=0.6)
        feedback = SteadyFeedback(3.0, budget=20, ahead=0.6)
        for epoch, temperature in enumerate([0.4, 0.5, 1.2, 0.9, 1.1, 1.0, 3.0]):
            logits, labels = problem(temperature, seed=epoch)
            measured = measure_temperature(logits, labels)
            assert scheduler.step(logits, labels) == feedback.update(measured.value, measured.error)
            assert scheduler.last.temperature == measured.value
        assert scheduler.feedback == feedback
        assert scheduler.freeze() == feedback.final != feedback.constant

    def test_the_constant_of_the_network_is_the_default_start(self, net):
        set_lipschitz(net, 7.0)
        scheduler = LipschitzScheduler(net)
        assert scheduler.constant == get_lipschitz(net) == pytest.approx(7.0, rel=1e-6)

    def test_a_given_start_is_set(self, net):
        LipschitzScheduler(net, lipschitz=7.0)
        assert get_lipschitz(net) == pytest.approx(7.0, rel=1e-6)

    def test_converged_is_the_papers_stop(self, net):
        scheduler, seen = LipschitzScheduler(net, rule="paper", lipschitz=1.0, window=3, tolerance=0.2), []
        logits, labels = problem(1.0, samples=4000)
        for factor in (4.0, 2.0, 1.05, 1.0, 1.0, 0.95, 1.0):  # T* is in proportion to the logits
            scheduler.step(factor * logits, labels)
            seen.append(scheduler.converged)
            assert seen[-1] == has_settled(scheduler.feedback.constants, window=3, tolerance=0.2)
        assert seen[0] is False
        assert seen[-1] is True

    def test_a_step_leaves_no_graph_behind(self, net):
        x, y = torch.randn(50, 4), torch.arange(50) % 5
        scheduler = LipschitzScheduler(net, rule="paper")
        logits = net.train()(x)
        assert logits.requires_grad
        assert isinstance(scheduler.step(logits, y), float)
        net(x).sum().backward()  # the projection was no operation on the graph


class TestFreezing:
    def test_it_sets_what_the_feedback_ends_with(self, net):
        scheduler = LipschitzScheduler(net, lipschitz=0.05, epochs=2)
        logits, labels = problem(0.2)
        after_step = scheduler.step(logits, labels)
        assert after_step == pytest.approx(0.05 / measure_temperature(logits, labels).value)  # towards 1: unbounded
        far = scheduler.step(0.01 * logits, labels)  # T* is a hundredth: away from 1 a step is bounded, L* is not
        assert scheduler.freeze() == scheduler.feedback.final > 2 * far
        assert scheduler.frozen
        assert scheduler.constant == scheduler.feedback.final
        assert get_lipschitz(net) == pytest.approx(scheduler.feedback.final, rel=1e-6)

    def test_the_advice_is_logged_then_and_once(self, net, caplog):
        scheduler = LipschitzScheduler(net, lipschitz=1.0)
        logits, labels = problem(1.0, samples=12)
        with caplog.at_level("WARNING", "lipscale"):
            scheduler.step(logits, labels)
            assert "12 calibration samples know T* to a factor of" in scheduler.advice
            assert not caplog.records  # what the last epoch knows counts
            scheduler.freeze()
        assert [record.message for record in caplog.records] == [scheduler.advice]

    def test_a_good_calibration_set_needs_none(self, net, caplog):
        scheduler = LipschitzScheduler(net)
        scheduler.step(*problem(1.0, samples=12))
        scheduler.step(*problem(1.0, samples=4000))
        with caplog.at_level("WARNING", "lipscale"):
            scheduler.freeze()
        assert scheduler.advice is None
        assert not caplog.records

    def test_a_degenerate_temperature_is_named_once_a_direction(self, net, caplog):
        scheduler = LipschitzScheduler(net, rule="paper", lipschitz=1.0)
        labels = torch.arange(20) % 5
        right = F.one_hot(labels, 5).float()
        with caplog.at_level("WARNING", "lipscale"):
            for logits in (right, right, -right, right, -right):
                scheduler.step(logits, labels)
        said = [record.message for record in caplog.records]
        assert len(said) == 2
        assert "none of the 20 calibration samples is misclassified" in said[0]
        assert "no better than chance on the 20" in said[1]
        assert 1 / 64 <= scheduler.constant <= 64


class TestTheState:
    @pytest.mark.parametrize("rule", ["steady", "paper"])
    @pytest.mark.parametrize("stop", [0, 1, 4, 7])
    def test_it_goes_on_as_if_nothing_had_happened(self, rule, stop):
        steps = [problem(t, seed=e) for e, t in enumerate([0.4, 0.5, 1.4, 0.8, 1.2, 0.9, 1.1])]

        def new():
            torch.manual_seed(0)
            net = models.mlp(5, 4, 8)
            return net, LipschitzScheduler(net, rule=rule, lipschitz=2.0, epochs=7, ahead=0.3, window=2, tolerance=0.5)

        def run(scheduler, chosen):
            return [(scheduler.step(*step), scheduler.converged, scheduler.last, scheduler.advice) for step in chosen]

        _, whole = new()
        expected = run(whole, steps)
        net, first = new()
        found = run(first, steps[:stop])
        text = json.dumps({"scheduler": first.state_dict()}, allow_nan=False)
        other, second = new()
        other.load_state_dict(net.state_dict())  # L itself is in the network's state
        second.load_state_dict(json.loads(text)["scheduler"])
        found += run(second, steps[stop:])
        assert found == expected
        assert second.freeze() == whole.freeze()
        assert second.state_dict() == whole.state_dict()

    def test_a_frozen_one_stays_frozen(self, net):
        scheduler = LipschitzScheduler(net, epochs=3)
        scheduler.step(*problem(0.5))
        constant = scheduler.freeze()
        again = LipschitzScheduler(net)
        again.load_state_dict(json.loads(json.dumps(scheduler.state_dict())))
        assert again.frozen
        assert again.constant == constant
        with pytest.raises(UserError, match="frozen"):
            again.step(*problem(0.5))

    def test_the_optimizers_memory_is_scaled_once_also_over_a_stop(self, net):
        """A loaded scheduler knows at which L the gradients were, not the L0 of the one that was made anew."""
        weight, optimizer = adam()
        logits, labels = problem(4.0)
        scheduler = LipschitzScheduler(net, rule="paper", lipschitz=100.0, optimizer=optimizer)
        scheduler.step(logits, labels)
        after = optimizer.state[weight]["exp_avg"].clone()
        again = LipschitzScheduler(net, rule="paper", lipschitz=100.0, optimizer=optimizer)
        again.load_state_dict(scheduler.state_dict())
        again.freeze()  # L is where it was
        assert torch.equal(optimizer.state[weight]["exp_avg"], after)


def adam(kind=torch.optim.Adam, gradient=2.0):
    """A parameter, and an optimizer that remembers a gradient of it."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1)
    if isinstance(optimizer, AdamWScheduleFree):
        optimizer.train()
    weight.grad = torch.full((3,), gradient)
    optimizer.step()
    return weight, optimizer


class TestTheOptimizersMemory:
    @pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
    def test_adams_moments_become_those_of_smaller_gradients(self, kind):
        weight, optimizer = adam(kind)
        scale_moments(optimizer, 0.25)
        other, smaller = adam(kind, gradient=0.5)
        for slot in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(optimizer.state[weight][slot], smaller.state[other][slot])

    def test_schedulefree_is_left_alone(self, net):
        weight, optimizer = adam(AdamWScheduleFree)
        before = {slot: value.clone() for slot, value in optimizer.state[weight].items()}
        scheduler = LipschitzScheduler(net, rule="paper", lipschitz=10.0, optimizer=optimizer)
        scheduler.step(*problem(5.0))
        assert scheduler.constant < NOTABLE_FALL * 10
        assert before.keys() == {"z", "exp_avg_sq"}
        for slot, value in before.items():
            assert torch.equal(optimizer.state[weight][slot], value), slot

    def test_sgd_has_none(self):
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        weight.grad = torch.ones(3)
        optimizer.step()
        before = optimizer.state[weight]["momentum_buffer"].clone()
        scale_moments(optimizer, 0.1)
        assert torch.equal(optimizer.state[weight]["momentum_buffer"], before)

    @pytest.mark.parametrize("temperature", [0.1, 0.9, 1.0, 1.1, 1.9, 2.1, 10.0])
    def test_only_a_notable_fall_reaches_it(self, net, temperature):
        weight, optimizer = adam()
        before = optimizer.state[weight]["exp_avg"].clone()
        logits, labels = problem(1.0, samples=4000)
        logits = logits * (temperature / fit_temperature(logits, labels))  # T* is in proportion to the logits
        scheduler = LipschitzScheduler(net, rule="paper", lipschitz=10.0, optimizer=optimizer)
        fall = scheduler.step(logits, labels) / 10.0
        assert fall == pytest.approx(1 / temperature)
        factor = fall if fall < NOTABLE_FALL else 1.0
        torch.testing.assert_close(optimizer.state[weight]["exp_avg"], factor * before)

    def test_a_fall_in_a_step_and_at_the_end_counts_as_one(self, net, monkeypatch):
        """L falls to 0.6 in the step and to 0.4 when it is frozen: neither is notable by itself, both together are."""
        factors, optimizer = [], object()
        monkeypatch.setattr(scheduling, "scale_moments", lambda optimizer, factor: factors.append(factor))
        scheduler = LipschitzScheduler(net, rule="paper", lipschitz=10.0, optimizer=optimizer)
        logits, labels = problem(1.0, samples=4000)
        scheduler.step(logits / fit_temperature(logits, labels) / 0.6, labels)
        assert not factors
        monkeypatch.setattr(PaperFeedback, "final", 4.0)
        scheduler.freeze()
        assert factors == [pytest.approx(0.4)]
        factors.clear()
        scheduler.freeze()
        assert not factors  # nothing falls twice


class TestBadInput:
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_logits_that_are_no_numbers(self, net, value):
        scheduler = LipschitzScheduler(net, lipschitz=2.0)
        logits, labels = problem(1.0)
        logits[7, 1] = value
        with pytest.raises(UserError, match="expected finite logits, got NaN or inf in row 7"):
            scheduler.step(logits, labels)
        assert scheduler.constant == 2.0  # and nothing has moved
        assert scheduler.feedback.constants == []
        assert scheduler.last is None
        assert get_lipschitz(net) == pytest.approx(2.0)

    @pytest.mark.parametrize(("label", "said"), [(5, "0..4, got 0..5"), (-1, "0..4, got -1..4")])
    def test_labels_out_of_range(self, net, label, said):
        logits, labels = problem(1.0)
        labels[3] = label
        with pytest.raises(UserError, match=f"expected labels in {said}"):
            LipschitzScheduler(net).step(logits, labels)

    @pytest.mark.parametrize("labels", [torch.zeros(39, dtype=torch.long), torch.zeros(40, 1, dtype=torch.long)])
    def test_labels_of_another_length(self, net, labels):
        with pytest.raises(UserError, match=r"expected logits \(N, C\) and labels \(N,\).*\(40, 5\).*labels \("):
            LipschitzScheduler(net).step(torch.randn(40, 5), labels)

    def test_no_sample(self, net):
        with pytest.raises(UserError, match="N >= 1"):
            LipschitzScheduler(net).step(torch.randn(0, 5), torch.zeros(0, dtype=torch.long))

    def test_labels_that_are_no_classes(self, net):
        logits, labels = problem(1.0)
        with pytest.raises(UserError, match="whole numbers.*float32"):
            LipschitzScheduler(net).step(logits, labels.float())

    def test_a_network_without_scaled_layers(self):
        with pytest.raises(UserError, match="Sequential has no scaled layer"):
            LipschitzScheduler(nn.Sequential(GroupSort2()))
        with pytest.raises(UserError, match="not known to be positively homogeneous"):
            LipschitzScheduler(nn.Sequential(nn.Linear(3, 3)))

    def test_a_step_after_the_end(self, net):
        scheduler = LipschitzScheduler(net, lipschitz=4.0)
        scheduler.freeze()
        with pytest.raises(UserError, match=r"L is frozen at 4: a scheduler takes no step after freeze\(\)"):
            scheduler.step(*problem(1.0))

    def test_an_unknown_rule(self, net):
        with pytest.raises(UserError, match="rule: expected 'steady' or 'paper', got 'papers'"):
            LipschitzScheduler(net, rule="papers")

    @pytest.mark.parametrize("start", [0.0, -1.0, math.inf, math.nan])
    def test_an_impossible_start(self, net, start):
        with pytest.raises(UserError, match="expected a Lipschitz constant"):
            LipschitzScheduler(net, lipschitz=start)

    def test_a_window_of_one(self, net):
        with pytest.raises(UserError, match="window"):
            LipschitzScheduler(net, rule="paper", window=1)
