"""The baselines: each loss against an oracle, each attacked batch against its promise, each method on real digits."""

import dataclasses
import json
import math

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from conftest import lipscale, training_of
from lipscale import data, models
from lipscale._random import random_stream, seeded
from lipscale.attacks import pgd
from lipscale.attacks.ball import distances
from lipscale.bounds import lipschitz_bound
from lipscale.certificates import certify
from lipscale.cli import app
from lipscale.errors import StoppedError, UserError
from lipscale.layers import estimate_means
from lipscale.layers.evaluation import evaluation_mode
from lipscale.losses import focal_loss, scheduled_focal_loss, smoothed_cross_entropy
from lipscale.runs import load, resume, train
from lipscale.settings import CONSTRAINED, Settings, replace
from lipscale.training import algorithm_1
from lipscale.training.inference import predict_logits
from lipscale.training.methods import adversarial_batch, method_of, miscalibrated_batch
from lipscale.training.optimizer import new_optimizer

BASELINES = ("standard", "label-smoothing", "focal", "focal-schedule", "mmce", "pgd-at", "caat")
PIXELS = (0.0, 1.0)


@pytest.fixture
def batch():
    """Logits and labels in float64."""
    return torch.randn(12, 5, dtype=torch.float64) * 3, torch.arange(12) % 5


@pytest.fixture(scope="module")
def few():
    found = data.limit(data.load_dataset("digits"), 300, seed=0)
    return found.train


def twin(net="mlp", seed=0):
    with seeded(seed, "weights"):
        if net == "mlp":
            return models.mlp(10, (1, 8, 8), 32, parts=models.UNCONSTRAINED)
        return models.convnet(10, 1, 4, parts=models.UNCONSTRAINED)


class TestLosses:
    def test_label_smoothing_is_the_cross_entropy_to_smoothed_labels(self, batch):
        z, y = batch
        smoothed = 0.9 * F.one_hot(y, 5) + 0.1 / 5
        by_hand = -(smoothed * F.log_softmax(z, 1)).sum(1).mean()
        torch.testing.assert_close(smoothed_cross_entropy(z, y, smoothing=0.1), by_hand)
        torch.testing.assert_close(smoothed_cross_entropy(z, y, smoothing=0.0), F.cross_entropy(z, y))

    @pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0], dtype=torch.float64)])
    def test_focal_without_gamma_is_the_cross_entropy(self, batch, weights):
        z, y = batch
        expected = F.cross_entropy(z, y, weight=weights)
        torch.testing.assert_close(focal_loss(z, y, gamma=0.0, weights=weights), expected)

    def test_focal_by_hand(self, batch):
        z, y = batch
        p = torch.softmax(z, 1)[torch.arange(12), y]
        torch.testing.assert_close(focal_loss(z, y, gamma=3.0), (-((1 - p) ** 3) * p.log()).mean())

    @pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 3.0])
    def test_the_gradient_of_focal(self, batch, gamma):
        """dl/dz_k = ((1 - p)^g - g p (1 - p)^(g - 1) log p) (p_k - y_k), p of the true class."""
        z, y = batch
        z = z.requires_grad_()
        (found,) = torch.autograd.grad(focal_loss(z, y, gamma=gamma), z)
        p = torch.softmax(z, 1)
        q = p[torch.arange(12), y]
        factor = (1 - q) ** gamma - gamma * q * (1 - q) ** (gamma - 1) * q.log()
        torch.testing.assert_close(found, factor.unsqueeze(1) * (p - F.one_hot(y, 5)) / 12)
        assert torch.autograd.gradcheck(lambda v: focal_loss(v, y, gamma=gamma), z)

    @pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0])
    def test_a_sample_that_is_certain_has_a_finite_gradient(self, gamma):
        z = torch.tensor([[200.0, 0.0], [0.0, 200.0]], requires_grad=True)
        loss = focal_loss(z, torch.tensor([0, 0]), gamma=gamma)
        loss.backward()
        assert loss.isfinite()
        assert z.grad.isfinite().all()

    def test_the_schedule_switches_at_a_fifth(self):
        p = torch.tensor([0.19, 0.21, 0.9, 0.02], dtype=torch.float64)
        z = torch.stack((p.log(), (1 - p).log()), 1)
        gamma = torch.tensor([5.0, 3.0, 3.0, 5.0], dtype=torch.float64)
        expected = (-((1 - p) ** gamma) * p.log()).mean()
        torch.testing.assert_close(scheduled_focal_loss(z, torch.zeros(4, dtype=torch.long)), expected)

    @pytest.mark.parametrize("method", BASELINES)
    def test_class_weights_work_in_every_loss(self, batch, method):
        """A class of weight zero plays no part, and equal weights change nothing."""
        z, y = batch
        loss = method_of(Settings(method=method, smoothing=0.0)).loss
        torch.testing.assert_close(loss(z, y, weights=torch.full((5,), 2.0, dtype=torch.float64)), loss(z, y))
        weights = torch.tensor([0.0, 1, 1, 1, 1], dtype=torch.float64)
        torch.testing.assert_close(loss(z, y, weights=weights), loss(z[y > 0], y[y > 0]))


def trained(few, net, method="standard", epochs=6):
    """A short real training of an unconstrained network, left in training mode."""
    settings = Settings(method=method, epochs=epochs, batch_size=64, learning_rate=0.01)
    training = training_of(twin(net), few, None, settings, box=PIXELS)
    algorithm_1(training)
    return training.net.train()


@pytest.fixture(scope="module", params=["mlp", "convnet"])
def net(request, few):
    return trained(few, request.param)


class TestAttackedBatches:
    @pytest.mark.parametrize("transform", [adversarial_batch, miscalibrated_batch])
    def test_they_stay_in_ball_and_box_and_leave_the_network_alone(self, few, net, transform):
        x, y = few.inputs[:100], few.labels[:100]
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        before = {k: v.clone() for k, v in net.state_dict().items()}
        points, _ = transform(net, x, y, random_stream(0), epsilon=0.5, steps=5, box=PIXELS)
        assert distances(points, x).max() <= 0.5 * (1 + 1e-5)
        assert distances(points, x).median() > 0.05  # it does move
        assert points.min() >= 0
        assert points.max() <= 1
        assert not points.requires_grad
        assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())  # batch statistics among them
        assert all((p.grad == 1).all() for p in net.parameters())
        assert all(m.training for m in net.modules())
        again, _ = transform(net, x, y, random_stream(0), epsilon=0.5, steps=5, box=PIXELS)
        other, _ = transform(net, x, y, random_stream(1), epsilon=0.5, steps=5, box=PIXELS)
        assert torch.equal(points, again)
        assert not torch.equal(points, other)

    def test_without_a_box_they_may_leave_it(self, few, net):
        points, _ = adversarial_batch(
            net, few.inputs[:50], few.labels[:50], random_stream(0), epsilon=0.5, steps=3, box=None
        )
        assert points.min() < 0

    def test_an_adversarial_batch_has_a_larger_loss_sample_by_sample(self, few, net):
        x, y = few.inputs[:100], few.labels[:100]
        points, _ = adversarial_batch(net, x, y, random_stream(0), epsilon=0.5, steps=10, box=PIXELS)
        with evaluation_mode(net):
            clean, attacked = (F.cross_entropy(net(v), y, reduction="none") for v in (x, points))
        assert (attacked > clean).float().mean() > 0.98
        assert attacked.mean() > clean.mean() + 0.2

    def test_a_miscalibrated_batch_keeps_every_answer_and_moves_confidence_both_ways(self, few, net):
        x, y = few.inputs[:100], few.labels[:100]
        points, _ = miscalibrated_batch(net, x, y, random_stream(0), epsilon=0.5, steps=10, box=PIXELS)
        with evaluation_mode(net):
            clean, attacked = net(x), net(points)
        assert torch.equal(clean.argmax(1), attacked.argmax(1))
        moved = torch.softmax(attacked, 1).amax(1) - torch.softmax(clean, 1).amax(1)
        assert (moved > 0).float().mean() > 0.25
        assert (moved < 0).float().mean() > 0.25
        assert moved.abs().max() > 0.1


class TestBatchNormalisation:
    def test_its_statistics_are_the_average_over_the_batches_at_every_depth(self):
        net = torch.nn.Sequential(
            torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Conv2d(4, 3, 3),
            torch.nn.BatchNorm2d(3),
        )  # fmt: skip
        batches = [torch.randn(8, 2, 9, 9) * (k + 1) + k for k in range(3)]
        estimate_means(net.eval(), batches)
        assert not any(m.training for m in net.modules())
        assert net[1].momentum == 0.1
        first = [net[0](x) for x in batches]
        torch.testing.assert_close(net[1].running_mean, torch.stack([y.mean((0, 2, 3)) for y in first]).mean(0))
        torch.testing.assert_close(net[1].running_var, torch.stack([y.var((0, 2, 3)) for y in first]).mean(0))
        normed = [F.relu(F.batch_norm(y, None, None, net[1].weight, net[1].bias, training=True)) for y in first]
        second = [net[3](y).mean((0, 2, 3)) for y in normed]
        torch.testing.assert_close(net[4].running_mean, torch.stack(second).mean(0))

    def test_no_batch_leaves_it_as_it_was(self):
        norm = torch.nn.BatchNorm2d(3)
        norm(torch.randn(4, 3, 2, 2) + 5)
        before = {k: v.clone() for k, v in norm.state_dict().items()}
        estimate_means(norm.eval(), [])
        assert all(torch.equal(before[k], v) for k, v in norm.state_dict().items())

    @pytest.mark.parametrize("optimizer", ["adamw", "schedulefree"])
    def test_after_an_epoch_it_belongs_to_the_weights_that_are_measured(self, few, optimizer):
        """ScheduleFree measures averaged weights, whose statistics no training batch has seen."""
        settings = Settings(method="standard", epochs=1, batch_size=60, optimizer=optimizer)
        training = training_of(twin("convnet"), few, None, settings)
        algorithm_1(training)
        net = training.net
        kept = {k: v.clone() for k, v in net.state_dict().items() if "running" in k}
        estimate_means(net, few.inputs[torch.randperm(len(few))].split(60))
        for name, value in kept.items():
            torch.testing.assert_close(net.state_dict()[name], value, rtol=0.05, atol=0.02)


class TestNoCertificate:
    def test_nothing_is_proven_about_an_unconstrained_network(self, few):
        net, x = twin(), few.inputs[:20]
        certificate = certify(net, x)
        logits = net(x).detach()
        assert certificate.bound == math.inf
        assert (certificate.radius() == 0).all()
        assert (certificate.radius(few.labels[:20]) == 0).all()
        lower, upper = certificate.confidence(0.1)
        assert (lower == 0).all()
        assert (upper == 1).all()
        p = torch.softmax(logits.double(), 1).amax(1)
        for end in certificate.confidence(0.0):  # where nothing moves, p is p
            torch.testing.assert_close(end, p)
        assert certificate.brier(few.labels[:20], 0.1) == 2

    def test_a_constrained_one_has_its_own(self, few):
        net, x = models.mlp(10, (1, 8, 8), 16), few.inputs[:20]
        assert certify(net, x).bound == lipschitz_bound(net.eval()) < 2


class TestTheLoop:
    def test_a_step_of_the_plan_is_absolute_for_ordinary_layers(self):
        optimizer = new_optimizer(twin(), Settings(method="standard", learning_rate=0.01))
        assert {group["rate"] for group in optimizer.param_groups} == {0.01}

    @pytest.mark.parametrize("method", BASELINES)
    def test_every_baseline_learns_without_a_constant(self, few, method):
        settings = Settings(
            method=method, epochs=8, batch_size=32, learning_rate=0.01, attack_steps=3, attack_epsilon=0.2
        )
        training = training_of(twin(), few, None, settings, box=PIXELS)
        algorithm_1(training)
        history = training.history
        assert history[-1].loss < 0.7 * history[0].loss
        assert {(e.phase, e.lipschitz, e.temperature) for e in history} == {(1, None, None)}
        assert (predict_logits(training.net, few).argmax(1) == few.labels).float().mean() > 0.7

    def test_phase_one_alone_is_phase_one(self, few):
        settings = Settings(epochs=10, batch_size=50)
        train, calibration = data.split_calibration(few, 0.25, seed=0, classes=tuple("0123456789"))
        lines = []
        for phase1_only in (False, True):
            with seeded(0, "weights"):
                net = models.mlp(10, (1, 8, 8), 16)
            chosen = replace(settings, phase1_only=phase1_only)
            training = training_of(net, train, calibration, chosen)
            algorithm_1(training)
            lines.append([(e.phase, e.epoch, e.loss, e.lipschitz, e.temperature) for e in training.history])
        assert len(lines[0]) == 10
        assert lines[1] == lines[0][:9]

    @pytest.mark.parametrize("method", ["pgd-at", "caat"])
    @pytest.mark.parametrize("optimizer", ["adamw", "schedulefree"])
    @pytest.mark.parametrize("model", ["mlp", "convnet"])
    def test_a_killed_run_resumes_bit_for_bit(self, tmp_path, method, optimizer, model):
        settings = Settings(
            method=method, optimizer=optimizer, model=model, width=4, limit=200, epochs=3, batch_size=40, attack_steps=2
        )
        whole = train(replace(settings, out=tmp_path / "whole"))
        asked = []

        def in_the_second_epoch():
            asked.append(1)
            return len(asked) == 8  # five batches an epoch: after the third of the second

        with pytest.raises(StoppedError):
            train(replace(settings, out=tmp_path / "killed"), should_stop=in_the_second_epoch)
        resumed = resume(tmp_path / "killed")
        for name, tensor in whole.net.state_dict().items():
            assert torch.equal(tensor, resumed.net.state_dict()[name]), name
        assert dataclasses.replace(whole.metrics, seconds=0) == dataclasses.replace(resumed.metrics, seconds=0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run folder of each method, by the command, in this process: to start one takes longer than such a run."""
    folder = tmp_path_factory.mktemp("methods")
    common = ["--epochs", "3", "--limit", "400", "--width", "16", "--attack-steps", "3"]
    for method in (*BASELINES, "list"):
        done = CliRunner().invoke(app, ["train", "--method", method, *common, "--out", str(folder / method)])
        assert done.exit_code == 0, done.output
    return folder


class TestRuns:
    @pytest.mark.parametrize("method", BASELINES)
    def test_the_folder_says_that_there_is_no_certificate(self, runs, method):
        metrics = json.loads((runs / method / "metrics.json").read_text())
        assert metrics["lipschitz_constant"] is None
        assert metrics["lipschitz_bound"] == "inf"
        assert set(metrics["certified_accuracy"].values()) == {0.0}
        assert metrics["train_size"] == 400
        assert metrics["calibration_size"] == 0
        loaded = load(runs / method)
        assert not any("sigma" in name for name in loaded.net.state_dict())
        page = (runs / method / "report.html").read_text()
        assert "unconstrained and carries no certificate" in page
        assert "How far is it safe" not in page
        assert "certified at" not in page

    def test_every_command_copes(self, runs):
        folder = runs / "standard"
        done = lipscale("evaluate", folder, "--attack-samples", 30)
        assert "carries no certificate" in " ".join(done.stdout.split())
        answers = json.loads(lipscale("predict", folder, "--epsilon", "0.1", "--json").stdout)
        assert {(a["radius"], a["lowest"], a["highest"]) for a in answers} == {(0.0, 0.0, 1.0)}
        shown = lipscale("predict", folder).stdout
        assert "radius" not in shown
        assert "carries no certificate" in shown
        done = lipscale("audit", folder, check=False)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "carries no certificate to audit" in done.stderr
        out = runs / "both.html"
        lipscale("report", runs / "list", folder, "--out", out)
        page = out.read_text()
        assert "It is unconstrained and carries no certificate" in page
        assert "How far is it safe" in page  # for the one that has a certificate
        assert "NaN" not in page

    @pytest.mark.slow
    def test_adversarial_training_is_more_robust_than_standard_training(self, digits):
        left = {}
        x, y = digits.test.inputs, digits.test.labels
        for method in ("standard", "pgd-at", "caat"):
            settings = Settings(method=method, epochs=30, batch_size=128)
            training = training_of(twin(), digits.train, None, settings, box=PIXELS)
            algorithm_1(training)
            with evaluation_mode(training.net):
                points = pgd(training.net, x, y, epsilon=0.5, box=PIXELS, generator=random_stream(0))
                left[method] = float((training.net(points).argmax(1) == y).float().mean())
        assert left["pgd-at"] > left["standard"] + 0.1
        assert left["caat"] > left["standard"]


class TestBadInputs:
    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"method": "standart"}, "did you mean 'standard'"),
            ({"method": "pgd_at"}, "did you mean 'pgd-at'"),
            (
                {"method": "standard", "offset": 1.0},
                "offset: means nothing to method standard: leave it out",
            ),
            (
                {"method": "standard", "layers": "aol"},
                "method: standard trains ordinary layers, to which layers aol mean nothing: leave `layers` out",
            ),
            (
                {"method": "focal", "lipschitz": 8.0},
                "lipschitz: means nothing to method focal: leave it out",
            ),
            (
                {"method": "fixed", "phase1_only": True},
                "phase1_only: means nothing to method fixed: leave it out",
            ),
            (
                {"method": "caat", "phase1_only": True},
                "phase1_only: means nothing to method caat: leave it out",
            ),
            ({"method": "label-smoothing", "smoothing": 1.0}, "smoothing"),
            ({"method": "focal", "focal_gamma": -1.0}, "focal_gamma"),
            ({"method": "pgd-at", "attack_epsilon": 0.0}, "attack_epsilon"),
            ({"method": "pgd-at", "attack_steps": 0}, "attack_steps"),
        ],
    )
    def test_what_makes_no_sense_is_refused_in_one_line(self, values, said):
        with pytest.raises(UserError) as refused:
            Settings.checked(values)
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)

    def test_the_flag_is_named(self):
        done = lipscale("train", "--method", "standard", "--offset", "3", check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("lipscale: --offset: means nothing to method standard")

    def test_what_makes_sense_is_not(self):
        for method in CONSTRAINED:
            Settings.checked({"method": method, "offset": 1.0, "lipschitz": 8.0})
        Settings.checked({"phase1_only": True})
        Settings.checked({"method": "standard", "offset": 0.0, "lipschitz": 1.0, "phase1_only": False})
