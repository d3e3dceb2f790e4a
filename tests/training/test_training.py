"""Algorithm 1: each step does what the paper says, on a real network and real digits."""

import dataclasses
import math
from functools import partial

import pytest
import torch

from conftest import training_of
from lipscale import data, estimate_means, models
from lipscale._random import seeded
from lipscale.bounds import lipschitz_bound
from lipscale.bounds.constant import get_lipschitz, set_lipschitz
from lipscale.calibration import scheduler as scheduling
from lipscale.calibration.feedback import DEGENERATE_STEP, is_resolved
from lipscale.calibration.scheduler import NOTABLE_FALL, scale_moments
from lipscale.calibration.temperature import fit_temperature, measure_temperature
from lipscale.errors import DivergedError
from lipscale.layers import BatchCentering, ConvexResidual, GroupSort2, L2NormPool2d, OrthoConv2d, OrthoLinear
from lipscale.layers.evaluation import evaluation_mode
from lipscale.settings import Settings, replace
from lipscale.training import TrainingSettings, algorithm_1, methods
from lipscale.training import epoch as epoch_module
from lipscale.training.inference import predict_logits
from lipscale.training.optimizer import PlannedAdamW, set_share
from lipscale.training.plan import Plan, falling_share

QUICK = Settings(epochs=3, phase2_epochs=2, batch_size=64)
PAPER = replace(QUICK, feedback="paper", optimizer="schedulefree")
ALONE = {"phase1_only": True}  # Phase II is planned, but does not follow


def make(digits_split, settings=QUICK, *, net="mlp", calibration=True):
    with seeded(settings.seed, "weights"):
        network = models.mlp(10, (1, 8, 8), 32) if net == "mlp" else models.convnet(10, 1, 4)
    return training_of(network, digits_split[0], digits_split[1] if calibration else None, settings)


def history_of(training):
    """All epochs of Algorithm 1, as they are reported."""
    seen = []
    algorithm_1(training, on_epoch=seen.append)
    assert seen == training.history
    return seen


@pytest.mark.parametrize("net", ["mlp", "convnet"])
def test_right_after_an_update_the_network_is_calibrated(digits_split, net):
    """L <- L / T* and the projection together make T* = 1, as Algorithm 1 means it."""
    training = make(digits_split, replace(PAPER, **ALONE), net=net)
    seen = []

    def check(epoch):
        logits = predict_logits(training.net, digits_split[1])
        seen.append((epoch.temperature, fit_temperature(logits, digits_split[1].labels)))

    algorithm_1(training, on_epoch=check)
    assert len(seen) == 3
    assert all(after == pytest.approx(1, rel=1e-4) for before, after in seen)
    assert any(abs(before - 1) > 0.05 for before, _ in seen)  # there was something to correct


def test_the_constants_follow_the_rule(digits_split):
    training = make(digits_split, replace(PAPER, lipschitz=2.0, **ALONE))
    expected = 2.0
    for epoch in history_of(training):
        expected /= epoch.temperature
        assert epoch.lipschitz == pytest.approx(expected, rel=1e-5)
    assert training.scheduler.feedback.constant == pytest.approx(expected)


def test_phase_two_freezes_the_constant_and_sees_all_data(digits_split):
    training, sizes, original = make(digits_split), [], methods.as_it_is

    def counting(net, inputs, labels, generator):
        sizes[-1] += len(labels)
        return original(net, inputs, labels, generator)

    training.method = dataclasses.replace(training.method, transform=counting)
    sizes.append(0)
    algorithm_1(training, on_epoch=lambda epoch: sizes.append(0))
    history = training.history
    assert sizes.pop() == 0
    assert [e.phase for e in history] == [1, 1, 1, 2, 2]
    assert sizes == [300, 300, 300, 400, 400]
    assert len({e.lipschitz for e in history[2:]}) == 1
    assert all(e.temperature is None for e in history[3:])


def test_phase_two_continues_or_restarts_the_optimizer(digits_split):
    for start, same in (("continue", True), ("restart", False)):
        training = make(digits_split, replace(PAPER, phase2_start=start, phase2_epochs=0))
        averaged, optimizer, seen = training.net.head.source.matrix, training.optimizer, []
        algorithm_1(
            training,
            on_epoch=lambda _, seen=seen, optimizer=optimizer, averaged=averaged: seen.append(
                (optimizer.param_groups[0]["k"], averaged.detach().clone())
            ),
        )
        steps, before = seen[-1]
        assert len(seen) == 3
        assert (training.optimizer is optimizer) is same
        assert training.optimizer.param_groups[0]["k"] == (steps if same else 0)
        assert torch.equal(before, averaged)  # either way it starts from the averaged weights


def test_a_fixed_constant_is_the_same_loop_without_feedback(digits_split):
    history = history_of(make(digits_split, replace(QUICK, lipschitz=5.0), calibration=False))
    assert len(history) == 3
    assert {round(e.lipschitz, 4) for e in history} == {5.0}
    assert {e.temperature for e in history} == {None}
    assert history[-1].loss < history[0].loss


def test_the_stop_ends_phase_one(digits_split):
    history = history_of(make(digits_split, replace(PAPER, epochs=50, window=2, tolerance=10.0, **ALONE)))
    assert len(history) == 2


def test_the_same_seed_gives_the_same_numbers_and_another_does_not(digits_split):
    losses = []
    for seed in (0, 0, 1):
        training = make(digits_split, replace(QUICK, seed=seed, **ALONE))
        torch.manual_seed(len(losses))  # the global generator plays no part
        losses.append([(e.loss, e.lipschitz) for e in history_of(training)])
    assert losses[0] == losses[1] != losses[2]


def test_the_offset_never_enters_the_temperature(digits_split):
    training, history = make(digits_split, replace(PAPER, offset=3.0, **ALONE)), []
    algorithm_1(
        training,
        on_epoch=lambda e: history.append(
            (e, fit_temperature(predict_logits(training.net, digits_split[1]), digits_split[1].labels))
        ),
    )
    assert len(history) == 3
    assert all(after == pytest.approx(1, rel=1e-4) for _, after in history)


def test_separable_and_hopeless_calibration_sets_are_named_once_and_bounded(digits_split, caplog):
    train, calibration = digits_split
    separable = calibration.take(torch.tensor([int((calibration.labels == c).nonzero()[0]) for c in range(10)]))
    settings = replace(PAPER, epochs=25, **ALONE)
    training = training_of(models.mlp(10, (1, 8, 8), 32), train.join(separable), separable, settings)
    with caplog.at_level("WARNING", "lipscale"):
        history = history_of(training)
    zero = [i for i, e in enumerate(history) if e.temperature == 0]
    assert zero, "ten memorised samples should be separable"
    ratios = [history[i].lipschitz / history[i - 1].lipschitz for i in zero if i]
    assert all(r <= DEGENERATE_STEP * (1 + 1e-6) for r in ratios)
    assert sum("misclassified" in r.message for r in caplog.records) == 1

    wrong = data.Samples(calibration.inputs, (calibration.labels + 5) % 10)
    # it knows the right answers, so these are hopeless
    training = training_of(training.net, train, wrong, replace(PAPER, **ALONE))
    algorithm_1(training)
    assert math.isinf(fit_temperature(predict_logits(training.net, wrong), wrong.labels))
    assert get_lipschitz(training.net) == pytest.approx(1 / DEGENERATE_STEP**3)


@pytest.mark.parametrize("calibration", [True, False])
def test_a_diverging_run_stops_with_the_epoch_named(digits_split, calibration):
    training = make(digits_split, calibration=calibration)
    samples = training.train.samples
    endless = data.Samples(samples.inputs * float("inf"), samples.labels)
    training.train = dataclasses.replace(training.train, samples=endless)
    with pytest.raises(DivergedError, match="epoch 1 of Phase I"):
        algorithm_1(training)


def test_evaluation_mode_shows_the_averaged_weights_and_gives_the_training_ones_back(digits_split):
    training = make(digits_split, replace(PAPER, learning_rate=0.01, **ALONE), net="convnet")
    algorithm_1(training)
    net, optimizer = training.net, training.optimizer
    net.train()
    optimizer.train()
    batch = digits_split[0].inputs[:64]
    kept = {k: v.clone() for k, v in net.state_dict().items()}
    optimizer.eval()
    with evaluation_mode(net):
        assert not net.training
        estimate_means(net, [batch])
        averaged = {k: v.clone() for k, v in net.state_dict().items()}
        first = net(batch)
        assert torch.equal(first, net(batch))
    optimizer.train()
    assert net.training
    trainable = [k for k in kept if k.endswith("matrix")]
    assert any(not torch.equal(kept[k], averaged[k]) for k in trainable)
    for k in trainable:
        torch.testing.assert_close(net.state_dict()[k], kept[k])
    centering = next(m for m in net.modules() if isinstance(m, BatchCentering))
    assert centering.mean.abs().max() > 0  # the estimate is kept


def test_what_is_measured_and_shipped_are_the_averaged_weights(digits_split):
    """ScheduleFree's x is the plain average of its z over all steps, at a constant learning rate."""
    training = make(digits_split, replace(PAPER, learning_rate=0.01, **ALONE))
    optimizer, weight, seen, checked = training.optimizer, training.net.head.source.matrix, [], []
    original = optimizer.step
    optimizer.step = lambda: (original(), seen.append(optimizer.state[weight]["z"].clone()))

    def check(epoch):
        torch.testing.assert_close(weight.detach(), torch.stack(seen).mean(0), atol=1e-5, rtol=1e-4)
        assert (weight - seen[-1]).abs().max() > 1e-3  # which is another one
        checked.append(epoch)

    algorithm_1(training, on_epoch=check)
    assert len(checked) == 3
    assert len(seen) == 3 * 5


def test_evaluation_mode_gives_every_part_its_own_mode_back(digits_split):
    training = make(digits_split, PAPER)
    net, optimizer = training.net, training.optimizer
    net.train()
    optimizer.train()
    net.head.eval()  # frozen by its owner
    with evaluation_mode(net):
        with evaluation_mode(net):
            assert not any(m.training for m in net.modules())
        assert not any(m.training for m in net.modules())
    assert net.training
    assert not net.head.training
    assert optimizer.param_groups[0]["train_mode"]  # an optimizer's two sets of weights are its owner's business


def test_evaluation_mode_notices_what_was_written_through_data(digits_split):
    net, x = make(digits_split).net.eval(), digits_split[0].inputs[:4]
    before = net(x).detach()
    raw = net.head.source.matrix
    raw.data = torch.randn_like(raw)
    with evaluation_mode(net):
        assert not torch.equal(net(x), before)


def test_a_projection_in_evaluation_mode_carries_over_to_training(digits_split):
    training = make(digits_split)
    with evaluation_mode(training.net):
        set_lipschitz(training.net, 7.0)
    assert get_lipschitz(training.net) == pytest.approx(7.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bfloat16"},
        {"layers": "reference"},
        {"padding": "circular"},
        pytest.param({"compile": True}, marks=pytest.mark.slow),
    ],
)
def test_every_way_to_compute_the_forward_pass_trains_and_is_certified_in_full_precision(
    digits_split, changes, monkeypatch
):
    # the default backend would call a C++ compiler
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    settings = replace(QUICK, epochs=1, phase2_epochs=0, lipschitz=1.0, **changes)
    parts = models.parts_of(layers=settings.layers, padding=settings.padding)
    training = training_of(
        models.convnet(10, 1, 4, parts=parts), digits_split[0].take(torch.arange(128)), None, settings
    )
    history = history_of(training)
    assert math.isfinite(history[0].loss)
    assert all(t.dtype != torch.bfloat16 for t in training.net.state_dict().values())
    assert lipschitz_bound(training.net) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_a_compiled_step_has_the_gradients_of_an_eager_one(digits_split):
    block = ConvexResidual(torch.nn.Sequential(BatchCentering(4), GroupSort2(), OrthoConv2d(4, 4, 3)))
    net = torch.nn.Sequential(OrthoConv2d(1, 4, 3, stride=2), block, L2NormPool2d(), OrthoLinear(4, 3)).train()
    inputs = data.as_input(digits_split[0].inputs[:4])
    net(inputs).square().sum().backward()
    eager = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    torch.compile(net, backend="aot_eager")(inputs).square().sum().backward()
    for p, grad in zip(net.parameters(), eager, strict=True):
        torch.testing.assert_close(p.grad, grad, atol=1e-4, rtol=1e-4)


class TestThePlan:
    def shares(self, digits_split, settings):
        training, seen = make(digits_split, settings), []
        original = training.optimizer.step
        training.optimizer.step = lambda: (seen.append(training.optimizer.param_groups[0]["lr"]), original())
        algorithm_1(training)
        return training, [lr / training.optimizer.param_groups[0]["rate"] for lr in seen]

    def test_the_budget_covers_both_phases_and_leaves_little_to_learn_for_the_second(self, digits_split):
        training, shares = self.shares(digits_split, Settings(epochs=10, batch_size=100, warmup_steps=6))
        assert (training.epochs_of(1), training.epochs_of(2)) == (9, 1)
        assert len(shares) == 9 * 3 + 1 * 4  # 300 samples an epoch, then all 400
        assert shares[:6] == pytest.approx([(k + 0.5) / 6 * (1 - 0.97 * (k + 0.5) / 27) for k in range(6)])
        assert shares[6:27] == pytest.approx([1 - 0.97 * (k + 0.5) / 27 for k in range(6, 27)])
        assert shares[27:] == pytest.approx([0.03 * (1 - (k + 0.5) / 4) for k in range(4)])

    def test_epochs_of_phase_two_that_are_asked_for_come_on_top(self, digits_split):
        training, shares = self.shares(
            digits_split, Settings(epochs=2, phase2_epochs=1, batch_size=400, warmup_steps=0)
        )
        assert (training.epochs_of(1), training.epochs_of(2)) == (2, 1)
        assert shares == pytest.approx([1 - 0.97 * 0.25, 1 - 0.97 * 0.75, 0.03 * 0.5])

    def test_the_warm_up_is_a_twentieth_of_phase_one(self, digits_split):
        _, shares = self.shares(digits_split, Settings(epochs=40, batch_size=400))
        assert shares[:2] == pytest.approx([0.5 / 1.8 * (1 - 0.97 * 0.5 / 36), 1.5 / 1.8 * (1 - 0.97 * 1.5 / 36)])
        assert shares[2] == pytest.approx(1 - 0.97 * 2.5 / 36)

    def test_phase_two_starts_where_an_early_stop_left_the_learning_rate(self, digits_split):
        early = Settings(epochs=10, phase2_epochs=1, feedback="paper", window=2, tolerance=1e9, batch_size=400)
        training, shares = self.shares(digits_split, replace(early, warmup_steps=0))
        assert training.epochs_of(1) == 2
        assert shares[2:] == pytest.approx([(1 - 0.97 * 0.2) * 0.5])

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, (36, 4, 0.03, False)),  # the steady rule carries a plan out whole
            ({"epochs": 9}, (9, 0, 0.0, False)),
            ({"phase2_epochs": 7}, (40, 7, 0.03, False)),
            ({"phase2_epochs": 0}, (40, 0, 0.0, False)),
            ({"phase1_only": True}, (36, 4, 0.03, False)),
            ({"feedback": "paper"}, (36, 4, 0.03, True)),
            ({"optimizer": "schedulefree"}, (36, 4, 0.0, True)),
            ({"method": "fixed"}, (40, 0, 0.0, False)),
            ({"method": "standard", "phase2_epochs": 3}, (40, 0, 0.0, False)),
        ],
    )
    def test_what_the_settings_ask_for(self, changes, expected):
        plan = Plan.of(TrainingSettings(**{"epochs": 40, **changes}))
        assert (plan.phase1_epochs, plan.phase2_epochs, plan.left, plan.stops_early) == expected

    @pytest.mark.parametrize(("batches", "expected"), [(1, 1), (3, 3), (50, 5)])
    def test_so_many_batches_estimate_the_means(self, digits_split, monkeypatch, batches, expected):
        """Of five; they are training inputs, and no step is taken on them."""
        seen = []
        monkeypatch.setattr(epoch_module, "estimate_means", lambda net, inputs: seen.append(len(list(inputs))))
        settings = Settings(epochs=2, phase2_epochs=0, batch_size=64, centering_batches=batches)
        algorithm_1(make(digits_split, settings))
        assert seen == [expected] * 2

    def test_the_feedback_knows_the_budget(self, digits_split):
        assert make(digits_split, Settings(epochs=40)).scheduler.feedback.budget == 36

    def test_under_schedulefree_phase_one_ends_once_l_is_resolved(self, digits_split):
        training = make(digits_split, Settings(epochs=100, phase2_epochs=0, optimizer="schedulefree", batch_size=64))
        algorithm_1(training)
        feedback = training.scheduler.feedback
        assert training.scheduler.converged
        assert feedback.settled
        assert 10 <= training.epochs_of(1) < 100
        assert is_resolved(feedback.constants, feedback.error, budget=100)
        assert not is_resolved(feedback.constants[:-1], feedback.error, budget=100)

    def test_the_frozen_constant_looks_ahead_to_where_the_learning_rate_is_zero(self, digits_split):
        training = make(digits_split, Settings(epochs=40))
        ahead, first = training.scheduler.feedback.ahead, training.plan.phase1_epochs
        assert ahead > 0
        assert falling_share(first + ahead * (1 - 1e-9), first, left=0.03) > 0
        assert falling_share(first + ahead, first, left=0.03) == pytest.approx(0)

    @pytest.mark.parametrize("changes", [{"phase2_epochs": 0}, {"optimizer": "schedulefree"}])
    def test_where_nothing_is_left_to_plan_it_does_not(self, digits_split, changes):
        assert make(digits_split, Settings(epochs=40, **changes)).scheduler.feedback.ahead == 0

    def test_a_step_is_relative_to_the_weight(self, digits_split):
        training = make(digits_split, Settings(epochs=1, phase2_epochs=0, learning_rate=0.1))
        weights = [g["params"][0] for g in training.optimizer.param_groups if g["params"][0].ndim > 1]
        for group in training.optimizer.param_groups:
            if group["params"][0].ndim > 1:
                rms = float(group["params"][0].detach().square().mean().sqrt())
                assert group["rate"] == pytest.approx(0.1 * rms)
        assert len({w.shape for w in weights}) > 1

    def test_steps_do_not_remember_that_gradients_were_larger(self):
        """Gradients in proportion to L, as L falls from 10 to 0.1: every step is that of a constant L."""
        gradients = torch.randn(15, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        weights = []
        for constants in [(1.0, 1.0, 1.0), (10.0, 1.0, 0.1)]:
            weight = torch.nn.Parameter(torch.ones(4, 3, dtype=torch.float64))
            optimizer = PlannedAdamW([weight], learning_rate=0.1, weight_decay=0.0)
            set_share(optimizer, 1.0)
            for k, gradient in enumerate(gradients):
                if k in (5, 10):
                    scale_moments(optimizer, constants[k // 5] / constants[k // 5 - 1])
                weight.grad = constants[k // 5] * gradient
                optimizer.step()
            weights.append(weight.detach())
        torch.testing.assert_close(*weights, atol=1e-6, rtol=0)

    @pytest.mark.parametrize("start", [0.01, 100.0])
    def test_the_optimizer_hears_how_far_l_fell(self, digits_split, start, monkeypatch):
        training = make(digits_split, Settings(epochs=1, phase2_epochs=0, batch_size=64, lipschitz=start))
        factors = []
        monkeypatch.setattr(scheduling, "scale_moments", lambda optimizer, factor: factors.append((optimizer, factor)))
        algorithm_1(training)
        fall = get_lipschitz(training.net) / start
        assert (fall < NOTABLE_FALL) is (start == 100.0)
        # L may fall twice, in the step and when it is frozen; what counts is how far it fell in all
        assert math.prod(factor for _, factor in factors) == pytest.approx(fall if start == 100.0 else 1)
        assert all(optimizer is training.optimizer for optimizer, _ in factors)

    def test_the_constant_that_is_frozen_is_the_feedbacks_final_one(self, digits_split):
        training = make(digits_split, Settings(epochs=4, phase2_epochs=1, batch_size=100))
        history = history_of(training)
        assert [e.phase for e in history] == [1, 1, 1, 1, 2]
        for epoch in history[3:]:
            assert epoch.lipschitz == pytest.approx(training.scheduler.feedback.final, rel=1e-5)
        assert all(e.temperature_error > 0 for e in history[:4])

    def test_the_smallest_budget_ends_calibrated(self, digits_split):
        """L0 is far from L* and a step is bounded, but what is frozen is all that the last epoch asked for."""
        training = make(digits_split, Settings(epochs=2, lipschitz=0.05, batch_size=64))
        algorithm_1(training)
        after = measure_temperature(predict_logits(training.net, digits_split[1]), digits_split[1].labels)
        assert after.value == pytest.approx(1, rel=1e-4)
