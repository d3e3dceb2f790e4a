"""Margins and radii: by hand, under temperature scaling, and against a real attack."""

import math

import pytest
import torch
from torch import nn

from lipscale import certified_radius, models, set_lipschitz
from lipscale.certificate import certified_accuracy, margin, radius_from_logits
from lipscale.layers import OrthoLinear


def test_the_margin_by_hand():
    z = torch.tensor([[3.0, 1.0, 2.5], [0.0, 4.0, 1.0]])
    assert margin(z).tolist() == [0.5, 3.0]
    assert margin(z, torch.tensor([1, 1])).tolist() == [-2.0, 3.0]


def test_a_wrong_prediction_has_no_radius():
    z = torch.tensor([[3.0, 1.0], [3.0, 1.0]])
    radii = radius_from_logits(z, 2.0, torch.tensor([0, 1]))
    assert radii.tolist() == pytest.approx([2 / (math.sqrt(2) * 2), 0.0])


def test_the_radius_of_a_linear_classifier_is_the_distance_to_its_boundary():
    # rows of an orthogonal matrix differ by sqrt(2): the generic radius is exact
    net = nn.Sequential(OrthoLinear(6, 4)).double().eval()
    x = torch.randn(20, 6, dtype=torch.float64)
    z, w = net(x), net[0].weight
    top = z.topk(2).indices
    distance = (z.gather(1, top[:, :1]) - z.gather(1, top[:, 1:])).squeeze(1) / (w[top[:, 0]] - w[top[:, 1]]).norm(
        dim=1
    )
    torch.testing.assert_close(certified_radius(net, x), distance)


def test_radii_are_invariant_under_temperature_scaling():
    """Eq. 8: T divides margin and constant alike."""
    net = models.mlp(5, 8, 16)
    x = torch.randn(30, 8)
    set_lipschitz(net, 10.0)
    before = certified_radius(net, x)
    for temperature in (0.03, 0.5, 4.0, 1000.0):
        set_lipschitz(net, 10.0 / temperature)
        torch.testing.assert_close(certified_radius(net, x), before, rtol=1e-4, atol=1e-6)


def test_certifying_leaves_the_mode_alone():
    net = models.mlp(5, 8, 16).train()
    certified_radius(net, torch.randn(2, 8))
    assert net.training


def test_certified_accuracy_counts_correct_samples_only():
    radii = torch.tensor([0.0, 0.1, 0.3, 0.6])
    assert certified_accuracy(radii, [0.0, 36 / 255, 0.25, 0.3, 0.5]) == {
        "0": 0.75,
        "0.1412": 0.5,
        "0.25": 0.5,
        "0.3": 0.5,
        "0.5": 0.25,
    }


@pytest.mark.parametrize("constant", [0.05, 5.0])
def test_no_attack_just_inside_the_radius_changes_the_class(constant):
    net = models.convnet(4, 1, 8)
    set_lipschitz(net, constant)
    net.eval()
    x = torch.rand(64, 1, 8, 8)
    predicted = net(x).argmax(1)
    radius = certified_radius(net, x).float() * 0.999
    delta = torch.zeros_like(x).normal_().requires_grad_()
    for _ in range(50):  # l2 PGD on the margin, steps of a tenth of the radius
        z = net(x + delta)
        margin(z, predicted).sum().backward()
        step = delta.grad / delta.grad.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, 1, 1, 1)
        moved = delta.detach() - 0.1 * radius.view(-1, 1, 1, 1) * step
        size = moved.flatten(1).norm(dim=1).clamp(min=1e-12)
        delta = (moved * (radius / size).clamp(max=1).view(-1, 1, 1, 1)).requires_grad_()
    assert (net(x + delta).argmax(1) == predicted).all()
