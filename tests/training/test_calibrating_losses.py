"""The losses that calibrate in training: each against plain loops over its formula, at its corners, on real digits."""

import math

import pytest
import torch
import torch.nn.functional as F

import lipscale
from conftest import training_of
from lipscale import data, losses, models
from lipscale._random import random_stream, seeded
from lipscale.attacks import signed_attack
from lipscale.bounds import get_lipschitz
from lipscale.errors import StoppedError, UserError
from lipscale.losses import AccuracyVersusUncertainty, RobustnessSmoothing
from lipscale.runs import train
from lipscale.settings import Settings
from lipscale.training import algorithm_1
from lipscale.training.inference import predict_logits
from lipscale.training.methods import both_attacked_batches, method_of

NEW = ("dual-focal", "mmce", "mmce-weighted", "avuc", "mbls", "ar-adals")
THRESHOLD, EDGES, GIVEN = 0.6, (1.0, 3.5), (0.7, 0.9, 1.0)


@pytest.fixture
def batch():
    """Logits of 30 samples and 4 classes, of which a good part are right, and labels."""
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(30, 4, dtype=torch.float64, generator=generator)
    y = torch.where(torch.rand(30, generator=generator) < 0.6, z.argmax(1), torch.arange(30) % 4)
    return z, y


def softmax(z):
    total = sum(math.exp(v) for v in z)
    return [math.exp(v) / total for v in z]


def answers(rows, labels):
    """The confidence and whether the answer is right, sample by sample."""
    found = []
    for z, y in zip(rows, labels, strict=True):
        p = softmax(z)
        best = max(range(len(p)), key=lambda k: p[k])
        found.append((p[best], best == y))
    return found


def cross_entropy(rows, labels, weights):
    total = sum(weights[y] for y in labels)
    return sum(-weights[y] * math.log(softmax(z)[y]) for z, y in zip(rows, labels, strict=True)) / total


def mmce(rows, labels, weights, balanced=False):
    square, of = 0.0, answers(rows, labels)
    n = sum(weights[y] for y in labels)
    right = sum(weights[y] for y, (_, correct) in zip(labels, of, strict=True) if correct)
    for (p, correct), y in zip(of, labels, strict=True):
        for (q, other), k in zip(of, labels, strict=True):
            counts = [(right if c else n - right) if balanced else n for c in (correct, other)]
            gaps = weights[y] * (correct - p) * weights[k] * (other - q)
            square += gaps * math.exp(-abs(p - q) / 0.4) / (counts[0] * counts[1])
    return cross_entropy(rows, labels, weights) + (0.1 if balanced else 2.0) * math.sqrt(square)


def avuc(rows, labels, weights):
    cells = {"AC": 0.0, "AU": 0.0, "IC": 0.0, "IU": 0.0}
    for z, y, (p, correct) in zip(rows, labels, answers(rows, labels), strict=True):
        u = -sum(v * math.log(v) for v in softmax(z))
        certain = u <= THRESHOLD
        soft = (p if correct else 1 - p) * (1 - math.tanh(u) if certain else math.tanh(u))
        cells[("A" if correct else "I") + ("C" if certain else "U")] += weights[y] * soft
    share = (cells["AC"] + cells["IU"]) / sum(cells.values())
    return cross_entropy(rows, labels, weights) - 3.0 * math.log(share)


def each(formula):
    """A formula for one sample, as a mean."""

    def mean(rows, labels, weights):
        total = sum(weights[y] for y in labels)
        return sum(weights[y] * formula(z, y) for z, y in zip(rows, labels, strict=True)) / total

    return mean


@each
def dual_focal(z, y):
    p = softmax(z)
    below = max((v for v in p if v < p[y]), default=0.0)
    return -((1 - p[y] + below) ** 5) * math.log(p[y])


@each
def mbls(z, y):
    return -math.log(softmax(z)[y]) + 0.1 * sum(max(max(z) - v - 2.0, 0.0) for v in z) / len(z)


@each
def ar_adals(z, y):
    p, ordered = softmax(z), sorted(z)
    q = GIVEN[sum(ordered[-1] - ordered[-2] >= edge for edge in EDGES)]
    return -sum((q if k == y else (1 - q) / (len(z) - 1)) * math.log(v) for k, v in enumerate(p))


FORMULAS = {
    "dual-focal": dual_focal,
    "mmce": mmce,
    "mmce-weighted": lambda *given: mmce(*given, balanced=True),
    "avuc": avuc,
    "mbls": mbls,
    "ar-adals": ar_adals,
}


def loss_of(name, *, constrained=False, constant=1.0):
    """The loss as a training has it once it has learned, in the state of the loops above."""
    named = {"method": "fixed", "objective": name} if constrained else {"method": name}
    unit = math.sqrt(2) * constant if constrained else 1.0
    settings = Settings(**named, **({"margin": 2.0 / unit} if name == "mbls" else {}))
    loss = method_of(settings, constant=lambda: constant).loss
    if name == "avuc":
        loss.state = THRESHOLD
    if name == "ar-adals":
        loss.state = {"given": list(GIVEN), "edges": [edge / unit for edge in EDGES]}
    return loss


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0, 1.0), (1.0, 2.0, 0.5, 4.0)])
@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("name", NEW)
def test_each_is_its_formula(batch, name, constrained, weights):
    """Also on a constrained network, where a margin of 2 logits and the edges of the groups are radii at L = 3.7."""
    z, y = batch
    expected = FORMULAS[name](z.tolist(), y.tolist(), weights)
    found = loss_of(name, constrained=constrained, constant=3.7)
    given = None if set(weights) == {1.0} else torch.tensor(weights, dtype=z.dtype)
    assert float(found(z, y, weights=given)) == pytest.approx(expected, abs=1e-9)
    for size in (1, 2):  # where every answer is right, or wrong
        one = FORMULAS[name](z[:size].tolist(), y[:size].tolist(), weights)
        assert float(found(z[:size], y[:size], weights=given)) == pytest.approx(one, abs=1e-9)


@pytest.mark.parametrize("name", NEW)
def test_the_gradient_is_right(batch, name):
    z, y = batch
    loss = loss_of(name)
    assert torch.autograd.gradcheck(lambda v: loss(v, y), z.requires_grad_())


CORNERS = {
    "all right and certain": ([[900.0, 0, 0], [0, 900.0, 0]], [0, 1]),
    "all wrong and certain": ([[900.0, 0, 0], [0, 900.0, 0]], [1, 2]),
    "one of each": ([[900.0, 0, 0], [0, 900.0, 0]], [0, 2]),
    "ties": ([[0.0, 0, 0], [1, 1, 1]], [0, 2]),
    "all right": ([[3.0, 0, 0], [0, 2, 0]], [0, 1]),
    "all wrong": ([[3.0, 0, 0], [0, 2, 0]], [2, 2]),
    "a batch of one": ([[0.5, 0, 0]], [0]),
    "one that is certain": ([[900.0, 0, 0]], [0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("name", NEW)
def test_loss_and_gradient_are_numbers_at_the_corners(name, corner, dtype):
    rows, labels = CORNERS[corner]
    z = torch.tensor(rows, dtype=dtype, requires_grad=True)
    loss = loss_of(name)(z, torch.tensor(labels))
    loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()


def test_weighted_mmce_lets_few_errors_count_as_much_as_many_correct_answers():
    """Of 1 + 99 samples that are 50 % sure each: |0.5 - 0.5| where balanced, |0.01 x 0.5 - 0.99 x 0.5| where not."""
    z, y = torch.tensor([[0.0, 1e-9]], dtype=torch.float64).repeat(100, 1), torch.ones(100, dtype=torch.long)
    y[0] = 0
    plain, balanced = (losses.mmce_loss(z, y, penalty=1.0, balanced=b) - F.cross_entropy(z, y) for b in (False, True))
    assert float(plain) == pytest.approx(0.49, abs=1e-6)
    assert float(balanced) == pytest.approx(0.0, abs=1e-6)


class TestLearning:
    def test_the_threshold_is_half_way_between_accurate_and_inaccurate_answers(self, batch):
        z, y = batch
        loss = AccuracyVersusUncertainty(penalty=3.0)
        torch.testing.assert_close(loss(z, y), F.cross_entropy(z, y))  # before it knows one
        loss.adapt(z, y)
        by_hand = {True: [], False: []}
        for row, (_, correct) in zip(z.tolist(), answers(z.tolist(), y.tolist()), strict=True):
            by_hand[correct].append(-sum(v * math.log(v) for v in softmax(row)))
        assert loss.state == pytest.approx(sum(sum(found) / len(found) for found in by_hand.values()) / 2)
        loss.adapt(z, z.argmax(1))  # where all are right, theirs
        assert loss.state == pytest.approx(sum(map(sum, by_hand.values())) / 30)

    def test_labels_move_by_accuracy_minus_confidence_in_each_group(self):
        generator = torch.Generator().manual_seed(1)
        z = 3 * torch.randn(201, 4, dtype=torch.float64, generator=generator)
        y = torch.where(torch.rand(201, generator=generator) < 0.5, z.argmax(1), torch.arange(201) % 4)
        loss = RobustnessSmoothing(step=0.2, unit=lambda: 2.0)
        torch.testing.assert_close(loss(z, y), F.cross_entropy(z, y))
        given = [1.0] * 4  # 50 samples a group at least
        for _ in range(3):
            loss.adapt(z, y)
            of = answers(z.tolist(), y.tolist())
            radii = [(sorted(row)[-1] - sorted(row)[-2]) / 2.0 for row in z.tolist()]
            order = sorted(range(201), key=lambda i: radii[i])
            start, edges = 0, []
            for group, size in enumerate((51, 50, 50, 50)):
                members = order[start : start + size]
                edges += [radii[members[0]]] if group else []
                gap = sum(of[i][1] - of[i][0] for i in members) / size
                given[group] = min(max(given[group] + 0.2 * gap, 1 / 4), 1.0)
                start += size
            assert loss.state["given"] == pytest.approx(given)
            assert loss.state["edges"] == pytest.approx(edges)
        assert min(given) < 1.0  # over-confident: the labels have given way

    def test_under_feedback_the_loss_sees_the_network_as_it_answers_now(self, digits_split):
        """After L has moved, not before: T* has taken away what all groups had in common."""
        train, calibration = digits_split
        settings = Settings(objective="avuc", epochs=10, batch_size=60, phase1_only=True)
        with seeded(0, "weights"):
            training = training_of(models.mlp(10, (1, 8, 8), 16), train, calibration, settings)
        algorithm_1(training)
        now = predict_logits(training.net, calibration)
        assert training.history[-1].temperature != pytest.approx(1.0, abs=1e-3)
        assert training.method.loss.state == pytest.approx(losses.uncertainty_threshold(now, calibration.labels), 1e-4)

    def test_without_feedback_the_threshold_is_that_of_the_first_epochs(self, digits_split):
        train, _ = digits_split
        seen = []

        def ended(settings, on_epoch=lambda training, epoch: None):
            with seeded(0, "weights"):
                net = models.mlp(10, (1, 8, 8), 16, parts=models.UNCONSTRAINED)
            training = training_of(net, train, None, settings)
            algorithm_1(training, on_epoch=lambda epoch: on_epoch(training, epoch))
            return training

        def measure(training, epoch):
            seen.append(losses.uncertainty_threshold(predict_logits(training.net, train), train.labels))

        kept = ended(Settings(method="avuc", epochs=20, batch_size=60, learning_rate=0.01)).method.loss.state
        ended(Settings(method="standard", epochs=20, batch_size=60, learning_rate=0.01), measure)
        # of 20 epochs the first two are the cross-entropy's, and what they end with stays
        assert kept == pytest.approx(seen[1], rel=1e-6)
        assert kept != pytest.approx(seen[-1], rel=0.1)


@pytest.mark.parametrize("named", [{"method": "ar-adals"}, {"method": "fixed", "objective": "ar-adals"}])
def test_ar_adals_holds_data_out_to_learn_from(named, tmp_path):
    run = train(Settings(**named, epochs=3, limit=300, width=8, out=tmp_path / "run"), progress=False)
    assert run.settings.calibration_fraction == 0.2
    assert (run.metrics.train_size, run.metrics.calibration_size) == (240, 0)  # which knows of no T*


@pytest.mark.parametrize("named", [*({"method": name} for name in NEW), {"method": "caat-authors"}])
def test_each_learns_the_digits(digits, named):
    settings = Settings(**named, epochs=25, batch_size=128, attack_steps=3)
    train, held_out = (
        data.split_calibration(digits.train, 0.1, seed=0, classes=digits.classes)
        if settings.holds_out
        else (digits.train, None)
    )
    with seeded(0, "weights"):
        net = models.mlp(10, (1, 8, 8), 64, parts=models.UNCONSTRAINED)
    training = training_of(net, train, held_out, settings, box=(0.0, 1.0))
    algorithm_1(training)
    right = predict_logits(training.net, digits.test).argmax(1) == digits.test.labels
    assert right.float().mean() > 0.9
    assert training.history[-1].train_accuracy <= 1


@pytest.mark.parametrize("method", ["list", "fixed"])
@pytest.mark.parametrize("name", NEW)
def test_constrained_networks_learn_them_too(digits, name, method):
    net = models.mlp(10, (1, 8, 8), 64)
    values = {"method": method, "objective": name, "epochs": 12, "batch_size": 128, "learning_rate": 0.2}
    fixed = {"lipschitz": 8.0} if method == "fixed" else {}
    fitted = lipscale.fit(net, (digits.train.inputs, digits.train.labels), **values, **fixed, progress=False)
    right = predict_logits(fitted.net, digits.test).argmax(1) == digits.test.labels
    assert right.float().mean() > 0.9
    assert get_lipschitz(net) == pytest.approx(8.0) if method == "fixed" else fitted.lipschitz > 1
    radii = lipscale.certify(net, digits.test.inputs[:100]).radius()
    assert radii.max() > 0


@pytest.mark.parametrize(
    "named",
    [
        {"method": "avuc"},
        {"method": "ar-adals"},
        {"objective": "avuc"},
        {"objective": "ar-adals"},
        {"objective": "ar-adals", "cross_fit": True},
        {"method": "caat-authors"},
    ],
)
def test_a_killed_training_resumes_bit_for_bit(digits, tmp_path, named):
    data = digits.train.inputs[:600], digits.train.labels[:600]
    options = {"epochs": 4, "batch_size": 200, "attack_steps": 2, "calibration_fraction": 0.2, "progress": False}
    parts = {} if "objective" in named else {"parts": models.UNCONSTRAINED}

    def fitted(**more):
        with seeded(0, "weights"):
            net = models.mlp(10, (1, 8, 8), 8, **parts)
        lipscale.fit(net, data, **named, **options, **more)
        return net.state_dict()

    asked = iter(range(100))
    with pytest.raises(StoppedError):  # three batches an epoch: after the second of the third
        fitted(checkpoint=tmp_path / "checkpoint", should_stop=lambda: next(asked) == 7)
    resumed = fitted(checkpoint=tmp_path / "checkpoint")
    for name, tensor in fitted().items():
        assert torch.equal(tensor, resumed[name]), name


class TestCaatOfItsAuthors:
    def test_every_sample_is_learned_from_twice_and_no_answer_has_changed(self, digits, digits_net):
        x, y = digits.train.inputs[:100], digits.train.labels[:100]
        points, labels = both_attacked_batches(digits_net, x, y, random_stream(0), steps=10, box=(0.0, 1.0))
        assert torch.equal(labels, torch.cat((y, y)))
        assert points.min() >= 0
        assert points.max() <= 1
        with torch.no_grad():
            clean, down, up = (F.softmax(digits_net(v), 1) for v in (x, *points.chunk(2)))
        assert torch.equal(clean.argmax(1), down.argmax(1))
        assert torch.equal(clean.argmax(1), up.argmax(1))
        rows = torch.arange(100)
        assert (down - clean)[rows, y].mean() < -0.01
        assert (up - clean)[rows, y].mean() > 0.01

    @pytest.mark.parametrize(("up", "kept"), [(True, 0.9), (False, 0.05)])
    def test_a_step_is_the_sign_of_the_gradient_after_their_dropout(self, up, kept):
        """Of a linear network: the change of a pixel that is kept is 2/255 / kept, and so many are kept."""
        net = torch.nn.Linear(4000, 2, bias=False).double()
        with torch.no_grad():
            net.weight[0], net.weight[1] = 1e-3, -1e-3
        x, y = torch.zeros(1, 4000, dtype=torch.float64), torch.tensor([0])
        x[0, 0] = 100.0  # the answer is class 0, by far
        change = signed_attack(net, x, y, up=up, steps=1, generator=random_stream(0)) - x
        moved = change != 0
        assert float(moved.double().mean()) == pytest.approx(kept, abs=0.02)
        expected = (1 if up else -1) * 2 / 255 / kept
        torch.testing.assert_close(change[moved], torch.full_like(change[moved], expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"method": "mmce", "objective": "mmce"}, "objective: means nothing to method mmce: leave it out, or use list"),
        ({"method": "mmce", "margin": 1.0}, "margin: means nothing to method mmce: leave it out, or use method mbls"),
        ({"method": "standard", "penalty": 1.0}, "penalty: means nothing to method standard: leave it out, or use"),
        ({"objective": "dual-focal", "penalty": 1.0}, "penalty: means nothing to objective dual-focal"),
        ({"objective": "mmce", "offset": 1.0}, "offset: means nothing to objective mmce"),
        ({"method": "mmce", "penalty": -1.0}, "penalty"),
        ({"method": "ar-adals", "alpha": 1.0}, "alpha"),
        ({"method": "mmce-weigthed"}, "did you mean 'mmce-weighted'"),
        ({"method": "avuc", "lipschitz": 4.0}, "lipschitz: means nothing to method avuc"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(values, said):
    with pytest.raises(UserError, match=r"^[^\n]*$") as refused:
        Settings.checked(values)
    assert said in str(refused.value)
