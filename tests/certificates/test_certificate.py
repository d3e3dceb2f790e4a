"""Margins, radii and confidence: by hand, under temperature scaling, against torchlip, and against real attacks."""

import math

import deel.torchlip as torchlip
import pytest
import torch
from torch import nn

from lipscale import Certificate, certify, models, register_rule, set_lipschitz
from lipscale.bounds.walk import RULES
from lipscale.certificates import certified_accuracy, certified_accuracy_curve, prove
from lipscale.certificates.affine import Affine
from lipscale.data import load_dataset
from lipscale.errors import UserError
from lipscale.layers import OrthoConv2d, OrthoLinear
from lipscale.losses import margin


def generic(bound, logits, error=0.0):
    """A certificate with sqrt(2) B for every pair, of logits that may be off by so much."""
    classes = logits.shape[1]
    pairwise = torch.full((classes, classes), math.sqrt(2) * bound, dtype=torch.float64)
    return Certificate(bound, pairwise, logits.double(), torch.zeros(len(logits)).double(), Affine(0.0, error))


def radii_of(net, inputs, labels=None):
    """Certify and measure, whatever layers the network is made of."""
    return certify(net, inputs, even_unconstrained=True).radius(labels)


@pytest.fixture(scope="module")
def trained():
    """A small network trained for real on the digits, and its test part."""
    digits = load_dataset("digits")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = models.mlp(10, (1, 8, 8), 64)
        set_lipschitz(net, 10.0)
        optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=3e-3)
        for _ in range(8):
            for batch in torch.randperm(len(digits.train)).split(64):
                loss = nn.functional.cross_entropy(net(digits.train.inputs[batch]), digits.train.labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return net.eval(), digits.test.inputs, digits.test.labels


def attack(objective, x, radius, *, steps=60):
    """Maximise an objective per sample within its own l2 ball, by projected gradient steps."""
    radius = radius.float().view(-1, *[1] * (x.ndim - 1))
    delta = torch.randn_like(x)
    for i in range(steps):
        size = delta.flatten(1).norm(dim=1).view_as(radius).clamp(min=1e-12)
        delta = (delta * (radius / size).clamp(max=1)).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(objective(x + delta).sum(), delta)
        unit = gradient / gradient.flatten(1).norm(dim=1).view_as(radius).clamp(min=1e-12)
        delta = delta.detach() + radius * (1.0 if i < steps // 2 else 0.1) * unit
    size = delta.flatten(1).norm(dim=1).view_as(radius).clamp(min=1e-12)
    return x + delta * (radius / size).clamp(max=1)


def test_the_margin_by_hand():
    z = torch.tensor([[3.0, 1.0, 2.5], [0.0, 4.0, 1.0]])
    assert margin(z).tolist() == [0.5, 3.0]
    assert margin(z, torch.tensor([1, 1])).tolist() == [-2.0, 3.0]


def test_the_radius_by_hand_and_zero_for_a_wrong_prediction():
    z = torch.tensor([[3.0, 1.0], [3.0, 1.0]])
    radii = generic(2.0, z).radius(torch.tensor([0, 1]))
    assert radii.tolist() == pytest.approx([2 / (math.sqrt(2) * 2), 0.0])
    # an error of 0.1 at x and at x' takes 2 sqrt(2) 0.1 off every gap; a slope makes every pair's constant larger, too
    z, norms = torch.tensor([[3.0, 1.0, 2.0]]).double(), torch.tensor([5.0]).double()
    pairwise = torch.tensor([[0.0, 4.0, 1.0]] * 3, dtype=torch.float64)
    fixed = Certificate(2.0, pairwise, z, norms, Affine(0.0, 0.1))
    off = 2 * math.sqrt(2) * 0.1
    assert fixed.radius().tolist() == pytest.approx([min((2 - off) / 4, (1 - off) / 1)])
    growing = Certificate(2.0, pairwise, z, norms, Affine(0.01, 0.0))
    off, slope = 2 * math.sqrt(2) * 0.01 * 5, math.sqrt(2) * 0.01
    assert growing.radius().tolist() == pytest.approx([min((2 - off) / (4 + slope), (1 - off) / (1 + slope))])


def test_radii_agree_with_torchlips_certificate_for_a_jointly_lipschitz_head():
    net = nn.Sequential(torchlip.SpectralLinear(8, 16), torchlip.GroupSort2(), torchlip.SpectralLinear(16, 5))
    x = torch.randn(20, 8)
    net.train()(x)  # torchlip fills its evaluation weights in training
    net.eval()
    top = net(x).topk(2).values.detach()
    theirs = (top[:, 0] - top[:, 1]).double() / math.sqrt(2)
    torch.testing.assert_close(radii_of(net, x), theirs, rtol=2e-3, atol=1e-5)


def test_the_radius_of_a_linear_classifier_is_the_distance_to_its_boundary():
    for head in (OrthoLinear(6, 4), nn.Linear(6, 4)):  # pair by pair the radius is exact for any head
        net = nn.Sequential(head).double().eval()
        x = torch.randn(20, 6, dtype=torch.float64)
        z, w = net(x).detach(), net[0].weight.detach()
        k = z.argmax(1)
        distance = (z.gather(1, k[:, None]) - z) / (w[k][:, None] - w).norm(dim=2)
        distance.scatter_(1, k[:, None], math.inf)
        torch.testing.assert_close(radii_of(net, x), distance.amin(1), rtol=1e-9, atol=0)


def test_pairs_never_give_a_smaller_radius_than_the_generic_constant(trained):
    net, x, y = trained
    certificate = certify(net, x)
    plain = generic(certificate.bound, certificate.logits, 1e-9)
    assert (certificate.radius(y) >= plain.radius(y)).all()


def test_radii_are_invariant_under_temperature_scaling():
    """Eq. 8: T divides margin and constant alike."""
    net = models.mlp(5, 8, 16).double()
    x = torch.randn(30, 8, dtype=torch.float64)
    set_lipschitz(net, 10.0)
    before = radii_of(net, x)
    for temperature in (0.03, 0.5, 4.0, 1000.0):
        set_lipschitz(net, 10.0 / temperature)
        torch.testing.assert_close(radii_of(net, x), before, rtol=1e-9, atol=0)


def test_the_answers_are_the_networks_own_to_float32(trained):
    net, x, _ = trained
    torch.testing.assert_close(certify(net, x).logits.float(), net(x).detach(), rtol=1e-5, atol=1e-5)


def test_certifying_leaves_the_mode_alone():
    net = models.mlp(5, 8, 16).train()
    radii_of(net, torch.randn(2, 8))
    assert net.training
    assert all(m.training for m in net.modules())


def test_no_norm_is_computed_twice(monkeypatch):
    """The bound and the constants behind the head come from one walk."""
    from lipscale.bounds import torch_rules  # the network answers in ordinary layers

    calls = []
    measured = torch_rules.matrix_norm
    monkeypatch.setattr(torch_rules, "matrix_norm", lambda w: calls.append(w.shape) or measured(w))
    certify(models.mlp(5, 8, 16, depth=3), torch.rand(2, 8))
    assert len(calls) == 4


def test_accuracy_is_that_of_the_radii(trained):
    net, x, y = trained
    certificate = certify(net, x)
    expected = certified_accuracy(certificate.radius(y), [0.0, 0.1, 0.5])
    assert certificate.accuracy(y, [0.0, 0.1, 0.5]) == expected
    assert 1 > expected["0"] > expected["0.1"] > expected["0.5"]


def test_an_exported_network_is_certified_where_that_is_asked_for(trained):
    net, x, _ = trained
    from lipscale import export_plain

    plain = export_plain(net)
    assert certify(plain, x).bound == math.inf
    asked = certify(plain, x, even_unconstrained=True)
    assert asked.bound == pytest.approx(certify(net, x).bound, rel=1e-6)


def test_certified_accuracy_counts_correct_samples_only():
    radii = torch.tensor([0.0, 0.1, 0.3, 0.6], dtype=torch.float64)
    expected = {"0": 0.75, "0.1412": 0.5, "0.25": 0.5, "0.3": 0.5, "0.5": 0.25}
    assert certified_accuracy(radii, [0.0, 36 / 255, 0.25, 0.3, 0.5]) == expected
    assert len(certified_accuracy(radii, [0.10001, 0.10002])) == 2
    steps, share = certified_accuracy_curve(radii)
    assert steps.tolist() == pytest.approx([0.1, 0.3, 0.6])
    assert share.tolist() == [0.75, 0.5, 0.25]
    for eps, value in zip(steps.tolist(), share.tolist(), strict=True):
        assert certified_accuracy(radii, [eps]).popitem()[1] == value


def test_no_attack_just_inside_the_radius_changes_the_class_and_a_larger_one_does(trained):
    net, x, _ = trained
    predicted = net(x).argmax(1)
    radius = radii_of(net, x)
    loss = lambda v: -margin(net(v), predicted)  # noqa: E731
    inside = attack(loss, x, radius * 0.9999)
    assert (net(inside).argmax(1) == predicted).all()
    outside = attack(loss, x, radius * 2.5)
    assert (net(outside).argmax(1) != predicted).float().mean() > 0.5  # the attack is a real one


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.3, 2.0])
def test_no_attack_drives_the_confidence_out_of_its_range(trained, epsilon):
    net, x, _ = trained
    predicted = net(x).argmax(1, keepdim=True)
    lower, upper = certify(net, x).confidence(epsilon)
    p = certify(net, x).logits.softmax(1).gather(1, predicted).squeeze(1)
    assert (lower <= p).all()
    assert (p <= upper).all()
    if epsilon == 0:
        torch.testing.assert_close(lower, upper, atol=1e-3, rtol=0)
        return
    radius = torch.full((len(x),), epsilon * 0.9999)
    for sign in (1, -1):
        found = attack(lambda v, s=sign: s * net(v).log_softmax(1).gather(1, predicted), x, radius)
        q = certify(net, found).logits.softmax(1).gather(1, predicted).squeeze(1)
        assert (lower <= q).all()
        assert (q <= upper).all()
        assert (q - p).abs().max() > 0.2 * (p - lower if sign < 0 else upper - p).max()  # it moved


def test_the_confidence_range_by_hand():
    z = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
    lower, upper = generic(1.0, z).confidence(0.5)
    moved = math.sqrt(2) * 0.5
    assert float(lower) == pytest.approx(1 / (1 + math.exp(-2 + moved) + math.exp(-3 + moved)))
    assert float(upper) == pytest.approx(1 / (1 + math.exp(-2 - moved) + math.exp(-3 - moved)))


def test_the_certified_brier_score_holds_under_attack(trained):
    net, x, y = trained
    certificate = certify(net, x)
    radius = torch.full((len(x),), 0.1)
    found = attack(lambda v: nn.functional.cross_entropy(net(v), y, reduction="none"), x, radius * 0.9999)
    from lipscale.metrics import brier

    clean, attacked, bound = brier(net(x), y), brier(net(found), y), certificate.brier(y, 0.1)
    assert clean < attacked <= bound <= 2


@pytest.mark.parametrize("epsilon", [-0.1, float("nan"), float("inf")])
def test_impossible_epsilons_are_refused(trained, epsilon):
    net, x, _ = trained
    with pytest.raises(UserError, match="epsilon"):
        certify(net, x).confidence(epsilon)
    with pytest.raises(UserError, match="epsilon"):
        certified_accuracy(torch.ones(2), [epsilon])


def test_inputs_that_are_not_finite_give_no_number(trained):
    net, x, _ = trained
    bad = x.clone()
    bad[3] = float("nan")
    with pytest.raises(UserError, match="finite"):
        radii_of(net, bad)


def test_reduced_precision_is_refused(trained):
    net, x, _ = trained
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UserError, match="autocast"):
        radii_of(net, x)
    half = models.mlp(10, (1, 8, 8), 64).bfloat16()
    with pytest.raises(UserError, match="float32 or float64"):
        radii_of(half, x.bfloat16())


def test_confidence_is_a_number_however_large_epsilon_is():
    z = torch.tensor([[300.0, 0.0, -1.0]], dtype=torch.float64)
    lower, upper = generic(1e4, z).confidence(10.0)
    assert (float(lower), float(upper)) == (0.0, pytest.approx(1.0))
    assert generic(1e4, z).brier(torch.tensor([1]), 10.0) == 2.0


def test_classes_that_move_together_never_change_places():
    head = nn.Linear(3, 3).double()
    with torch.no_grad():
        head.weight[1] = head.weight[0]
        head.bias.copy_(torch.tensor([1.0, 0.0, -50.0]))
    radii = radii_of(nn.Sequential(head), torch.randn(5, 3, dtype=torch.float64))
    assert radii.isfinite().all()
    assert (radii > 10).all()  # only the third class can overtake, and it is far away
    with torch.no_grad():
        head.bias[1] = 1.0  # a tie that nothing breaks
    assert (radii_of(nn.Sequential(head), torch.randn(5, 3, dtype=torch.float64)) == 0).all()


def test_the_head_of_a_network_with_a_forward_of_its_own_is_not_trusted():
    class Tripled(nn.Sequential):
        def forward(self, x):
            return 3 * super().forward(x)

    register_rule(Tripled, lambda net, bound: 3 * bound(net[0]))
    try:
        net = Tripled(OrthoLinear(6, 4)).double().eval()
        x = torch.randn(20, 6, dtype=torch.float64)
        torch.testing.assert_close(radii_of(net, x), margin(net(x).detach()) / (3 * math.sqrt(2)))
    finally:
        del RULES[Tripled]


@pytest.mark.parametrize("labels", [torch.tensor([0]), torch.zeros(3, 2, dtype=torch.long)])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(UserError, match="3 labels"):
        generic(1.0, torch.zeros(3, 4)).radius(labels)


def test_inputs_that_cannot_be_certified_are_refused(trained):
    net, x, _ = trained
    with pytest.raises(UserError, match="float32 or float64 inputs"):
        certify(net, x.bfloat16())
    with pytest.raises(UserError, match=r"inputs \(N, ...\)"):
        certify(net, torch.tensor(1.0))
    assert certify(net, x[:0]).radius().shape == (0,)


def test_a_proof_is_about_inputs_of_one_shape():
    net = nn.Sequential(OrthoConv2d(1, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), OrthoLinear(2, 2)).eval()
    proof = prove(net, (1, 32, 32))  # its pool divides distances by 32
    with pytest.raises(UserError, match=r"about inputs of shape \(1, 32, 32\), got \(1, 1, 1\)"):
        proof(torch.rand(1, 1, 1, 1))
