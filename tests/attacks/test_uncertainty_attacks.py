"""Attacks on uncertainty: against hand-made plain loops of their objectives, and what each promises."""

import pytest
import torch

from lipscale import models, set_lipschitz
from lipscale.attacks import UNCERTAINTY_ATTACKS, ace, apgd

KEEP_CLASSES = ("ace", "over", "under", "maximum")


@pytest.fixture(scope="module")
def victim():
    torch.manual_seed(0)
    net = models.mlp(4, 6, 16).double().eval()
    set_lipschitz(net, 8.0)
    x = torch.rand(60, 6, dtype=torch.float64)
    with torch.no_grad():
        y = torch.distributions.Categorical(logits=net(x)).sample()  # some answers are wrong
    return net, x, y


def attacked(victim, name, *, epsilon=0.2, steps=20, box=(0.0, 1.0)):
    net, x, y = victim
    stream = torch.Generator().manual_seed(0)
    return UNCERTAINTY_ATTACKS[name](net, x, y, epsilon=epsilon, steps=steps, box=box, generator=stream)


def entropy(p):
    return -(p * p.log()).sum(1)


def confidences(victim, points):
    """The probability of the class that was predicted for the input, before and after."""
    net, x, _ = victim
    with torch.no_grad():
        own = net(x).argmax(1, keepdim=True)
        return (net(v).softmax(1).gather(1, own).squeeze(1) for v in (x, points))


def ace_by_hand(net, x, label, epsilon):
    """One sample, as the paper has it, with a step in l2: x -+ eps g / ||g||, halved while the class changes."""
    leaf = x.clone().requires_grad_()
    p = torch.softmax(net(leaf.unsqueeze(0)), 1)[0]
    predicted = int(p.argmax())
    p[predicted].backward()
    sign = -1 if predicted == int(label) else 1
    for _ in range(15):
        point = (x + sign * epsilon * leaf.grad / leaf.grad.norm()).clamp(0, 1)
        if int(net(point.unsqueeze(0)).argmax()) == predicted:
            return point
        epsilon /= 2
    return x


@pytest.mark.parametrize("epsilon", [0.02, 0.2, 2.0])
def test_ace_is_its_plain_loop(victim, epsilon):
    net, x, y = victim
    by_hand = torch.stack([ace_by_hand(net, x[i], y[i], epsilon) for i in range(len(x))])
    torch.testing.assert_close(ace(net, x, y, epsilon=epsilon, box=(0.0, 1.0)), by_hand, atol=1e-9, rtol=0)


def test_ace_gives_up_where_no_step_keeps_the_class():
    """A class that ends at the input itself: every step down changes it."""

    class Edge(torch.nn.Module):
        def forward(self, x):
            above = 1e-12 * (x.sum(1) >= x.new_tensor(1.0))
            return torch.stack((x.sum(1) + above, torch.full_like(above, 1.0)), 1)

    x = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    assert torch.equal(ace(Edge(), x, torch.tensor([0]), epsilon=0.1), x)


@pytest.mark.parametrize("name", UNCERTAINTY_ATTACKS)
@pytest.mark.parametrize("epsilon", [0.01, 0.3])
def test_all_stay_in_the_ball_and_in_the_box(victim, name, epsilon):
    points, x = attacked(victim, name, epsilon=epsilon), victim[1]
    assert ((points - x).norm(dim=1) <= epsilon * (1 + 1e-5)).all()
    assert ((points >= 0) & (points <= 1)).all()
    assert torch.equal(points, attacked(victim, name, epsilon=epsilon))  # the same seed, the same points


@pytest.mark.parametrize("name", KEEP_CLASSES)
def test_some_leave_every_class_as_it_is(victim, name):
    net, x, _ = victim
    assert torch.equal(net(attacked(victim, name)).argmax(1), net(x).argmax(1))


@pytest.mark.parametrize(("name", "when_right", "when_wrong"), [("over", 1, 1), ("under", -1, -1), ("maximum", -1, 1)])
def test_confidences_go_where_they_are_sent(victim, name, when_right, when_wrong):
    net, x, y = victim
    before, after = confidences(victim, attacked(victim, name))
    sign = torch.where(net(x).argmax(1) == y, when_right, when_wrong)
    assert (sign * (after - before) >= 0).all()
    assert (sign * (after - before)).mean() > 0.02


def test_the_strong_version_of_ace_is_at_least_as_strong(victim):
    net, x, y = victim
    right = net(x).argmax(1) == y
    (before, one_step), (_, many) = (confidences(victim, attacked(victim, name)) for name in ("ace", "maximum"))
    down = torch.where(right, before - one_step, one_step - before)
    further = torch.where(right, before - many, many - before)
    assert down.mean() > 0.02
    assert further.mean() > down.mean()


@pytest.mark.parametrize(("name", "sign"), [("low-entropy", -1), ("high-entropy", 1)])
def test_the_entropy_goes_its_way_as_apgd_on_a_plain_objective_does(victim, name, sign):
    net, x, _ = victim
    points = attacked(victim, name, box=None)
    with torch.no_grad():
        before, after = entropy(net(x).softmax(1)), entropy(net(points).softmax(1))
    assert (sign * (after - before) >= 0).all()
    assert (sign * (after - before)).mean() > 0.05
    how = {"steps": 20, "generator": torch.Generator().manual_seed(0)}
    plain = apgd(lambda v: sign * entropy(net(v).softmax(1)), x, torch.full((len(x),), 0.2), **how)
    better = sign * (entropy(net(plain).softmax(1)) - before) > 0
    torch.testing.assert_close(points[better], plain[better], atol=1e-6, rtol=0)


def test_the_loss_attack_has_the_largest_loss(victim):
    net, _, y = victim

    def loss(name):
        return torch.nn.functional.cross_entropy(net(attacked(victim, name)), y).item()

    assert loss("loss") >= max(map(loss, UNCERTAINTY_ATTACKS))
