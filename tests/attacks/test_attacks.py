"""Attacks stay in their ball and box, find what is known to be there, and equal the ones that they adapt."""

import sys

import pytest
import torch
import torch.nn.functional as F
from pyautoattack import AutoAttack
from pyautoattack.square import SquareAttack
from torch import nn

from lipscale import models
from lipscale.attacks import apgd, autoattack, calibration_attack, pgd
from lipscale.attacks.autoattack import takes_squares
from lipscale.attacks.ball import distances, project
from lipscale.errors import UserError
from lipscale.runs.attack_cache import KeptTensors


def test_projection_stays_in_ball_and_box():
    centres = torch.rand(50, 3, 4, 4)
    reach = torch.full((50, 1, 1, 1), 0.3)
    points = project(centres + torch.randn_like(centres), centres, reach, (0.0, 1.0))
    assert points.min() >= 0
    assert points.max() <= 1
    assert (distances(points, centres) <= 0.3 * (1 + 1e-6)).all()
    inside = centres + 0.001
    assert torch.equal(project(inside, centres, reach), inside)


def test_apgd_finds_the_best_point_of_a_linear_objective_in_each_ball():
    w = torch.randn(12)
    x, radius = torch.randn(5, 12), torch.tensor([0.1, 1.0, 2.0, 0.5, 3.0])
    found = apgd(lambda v: v @ w, x, radius, steps=30)
    assert ((found - x).norm(dim=1) <= radius * (1 + 1e-5)).all()
    torch.testing.assert_close(found @ w, x @ w + radius * w.norm(), rtol=1e-3, atol=1e-3)


def test_pgd_breaks_a_linear_network_exactly_beyond_its_distance_to_the_boundary():
    """For two classes and w = w_0 - w_1 the nearest other class is margin / ||w|| away."""
    head = nn.Linear(20, 2)
    net = nn.Sequential(head)
    x = torch.randn(200, 20)
    z = net(x).detach()
    y = z.argmax(1)
    distance = (z[:, 0] - z[:, 1]).abs() / (head.weight[0] - head.weight[1]).norm().detach()
    for eps in (0.2, 0.7):
        generator = torch.Generator().manual_seed(0)
        points = pgd(net, x, y, epsilon=eps, generator=generator)
        assert (distances(points, x) <= eps * (1 + 1e-6)).all()
        fooled = net(points).argmax(1) != y
        assert not fooled[distance > eps].any()
        assert fooled[distance < 0.98 * eps].all()
        assert torch.equal(points[~fooled], x[~fooled])


def test_pgd_breaks_a_network_so_sure_that_cross_entropy_has_no_gradient():
    net = nn.Sequential(nn.Linear(5, 2, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1e4, 0, 0, 0, 0], [-1e4, 0, 0, 0, 0]]))
    x = torch.tensor([[0.5, 0, 0, 0, 0]])
    y = torch.tensor([0])
    x.requires_grad_()
    F.cross_entropy(net(x), y).backward()
    assert x.grad.abs().max() == 0  # what a plain PGD would follow
    points = pgd(net, x.detach(), y, epsilon=1.0, restarts=2)
    assert net(points).argmax(1).item() == 1


def test_pgd_is_seeded_and_respects_pixels(digits_net, digits):
    x, y = digits.test.inputs[:60], digits.test.labels[:60]
    a, b = (
        pgd(digits_net, x, y, epsilon=1.0, box=(0, 1), generator=torch.Generator().manual_seed(3)) for _ in range(2)
    )
    assert torch.equal(a, b)
    assert a.min() >= 0
    assert a.max() <= 1
    before, after = ((digits_net(v).argmax(1) == y).double().mean() for v in (x, a))
    assert after < before - 0.2


def test_calibration_attacks_keep_the_class_and_move_the_confidence_both_ways(digits_net, digits):
    x, y = digits.test.inputs[:80], digits.test.labels[:80]
    attacked = calibration_attack(digits_net, x, y, epsilon=0.3, box=(0, 1))
    clean = digits_net(x).detach()
    predicted = clean.argmax(1)

    def confidence(points):
        assert torch.equal(digits_net(points).argmax(1), predicted)
        assert (distances(points, x) <= 0.3 * (1 + 1e-6)).all()
        assert points.min() >= 0
        assert points.max() <= 1
        return torch.softmax(digits_net(points).detach(), 1).amax(1)

    here = torch.softmax(clean, 1).amax(1)
    over, under, most = (confidence(points) for points in attacked)
    assert (over >= here).all()
    assert (under <= here).all()
    assert (over - here).mean() > 0.01
    assert (here - under).mean() > 0.1
    right = predicted == y
    assert torch.equal(most, torch.where(right, under, over))


def test_under_confidence_reaches_the_boundary_of_a_linear_network():
    """With two classes confidence 1/2 is as low as it gets, and it is within reach of every input that is near."""
    net = nn.Sequential(nn.Linear(10, 2))
    x = torch.randn(100, 10)
    z = net(x).detach()
    distance = (z[:, 0] - z[:, 1]).abs() / (net[0].weight[0] - net[0].weight[1]).norm().detach()
    under = calibration_attack(net, x, z.argmax(1), epsilon=0.5, steps=100).under
    lowest = torch.softmax(net(under).detach(), 1).amax(1)
    assert (lowest[distance < 0.4] < 0.52).all()
    assert torch.equal(net(under).argmax(1), z.argmax(1))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [pytest.param(5, marks=pytest.mark.long), 250])
def test_autoattack_equals_pyautoattack_run_directly(digits_net, digits, batch_size):
    x, y = digits.test.inputs[:12], digits.test.labels[:12]
    state = torch.random.get_rng_state()
    ours = autoattack(digits_net, x, y, epsilon=0.6, seed=5, batch_size=batch_size)
    assert torch.equal(torch.random.get_rng_state(), state)  # it leaves the global generator alone
    direct = AutoAttack(digits_net, norm="L2", eps=0.6, version="standard", seed=5)
    theirs, _ = direct.run_standard_evaluation(x, y, batch_size=batch_size)
    assert torch.equal(ours, theirs)
    robust = digits_net(ours).argmax(1) == y
    assert 0 < robust.sum() < 12


class Killed(Exception):
    pass


@pytest.mark.long
def test_a_killed_autoattack_goes_on_from_its_cache_to_the_same_points(digits_net, digits, tmp_path):
    x, y = digits.test.inputs[:20], digits.test.labels[:20]
    expected = autoattack(digits_net, x, y, epsilon=0.6, batch_size=10)
    done = []

    def kill_after_three(finished, total):
        done.append(finished)
        if len(done) == 3:
            raise Killed

    with pytest.raises(Killed):
        autoattack(
            digits_net, x, y, epsilon=0.6, batch_size=10, finished=KeptTensors(tmp_path), on_batch=kill_after_three
        )
    kept = KeptTensors(tmp_path)
    assert len(kept) == 3
    kept._path(next(iter(kept))).write_bytes(b"torn")  # a damaged file is attacked again
    assert torch.equal(autoattack(digits_net, x, y, epsilon=0.6, batch_size=10, finished=kept), expected)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_autoattack_takes_any_number_of_classes(classes):
    net = models.mlp(classes, (1, 8, 8), 16).eval()
    x = torch.rand(6, 1, 8, 8)
    y = net(x).argmax(1)
    assert torch.equal(autoattack(net, x, y, epsilon=1e-6), x)
    broken = autoattack(net, x, y, epsilon=3.0)
    assert (net(broken).argmax(1) != y).any()
    assert (distances(broken, x) <= 3.0 * (1 + 1e-5)).all()


@pytest.mark.parametrize("height", [2, 5, 8, 11, 12, 13, 14, 15, 17, 18, 19, 20, 23, 24, 25, 28, 32, 64])
def test_the_square_attack_is_left_out_where_upstream_fails(height):
    for width in (height, height + 2, 3 * height):
        net = nn.Sequential(nn.Flatten(), nn.Linear(height * width, 2))
        square = SquareAttack(net, norm="L2", eps=0.01, n_queries=5, device="cpu")
        try:
            square.perturb(torch.rand(2, 1, height, width))
        except (RuntimeError, ZeroDivisionError):
            assert not takes_squares(height, width)
        else:
            assert takes_squares(height, width)


def test_autoattack_says_what_it_needs(digits_net, digits, monkeypatch):
    with pytest.raises(UserError, match="takes pictures.*give `attack` pgd"):
        autoattack(nn.Linear(4, 3), torch.rand(5, 4), torch.zeros(5, dtype=torch.long), epsilon=0.1)
    monkeypatch.setattr(sys.modules["lipscale.attacks.autoattack"], "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'lipscale\[attack\]'"):
        autoattack(digits_net, digits.test.inputs[:2], digits.test.labels[:2], epsilon=0.1)
