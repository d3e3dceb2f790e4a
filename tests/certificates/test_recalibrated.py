"""Certified radii behind post-hoc calibrators: exact where they can be, and never broken."""

import pytest
import torch
from torch import nn

from lipscale import certify, models, set_lipschitz
from lipscale.attacks import apgd
from lipscale.calibration.posthoc import calibrator
from lipscale.certificates.recalibrated import _gains, recalibrated_radius
from lipscale.losses import margin

AFFINE = ("vector", "matrix", "dirichlet")


@pytest.fixture(scope="module")
def answers():
    torch.manual_seed(0)
    net = models.mlp(4, 6, 16).double().eval()
    set_lipschitz(net, 6.0)
    x = torch.rand(300, 6, dtype=torch.float64)
    with torch.no_grad():
        skewed = net(x) * torch.tensor([0.3, 1.0, 0.6, 1.4]) + torch.tensor([0.5, 0.0, -0.5, 0.2])
        y = torch.distributions.Categorical(logits=skewed).sample()
    return net, x, y, float(net(torch.zeros(1, 6, dtype=torch.float64)).detach().norm())


def test_temperature_keeps_every_radius(answers):
    net, x, y, zero = answers
    certificate = certify(net, x)
    fitted = calibrator("temperature").fit(certificate.logits, y)
    assert fitted.temperature != pytest.approx(1.0, abs=0.01)
    assert torch.equal(recalibrated_radius(certificate, fitted, zero), certificate.radius())


@pytest.mark.parametrize("name", ["histogram", "isotonic", "bbq"])
def test_steps_have_no_certificate(answers, name):
    net, x, y, zero = answers
    certificate = certify(net, x)
    assert recalibrated_radius(certificate, calibrator(name).fit(certificate.logits, y), zero) is None


@pytest.mark.parametrize("name", AFFINE)
def test_no_attack_within_the_radius_changes_the_calibrated_answer(answers, name):
    net, x, y, zero = answers
    certificate = certify(net, x)
    fitted = calibrator(name).fit(certificate.logits, y)
    radii = recalibrated_radius(certificate, fitted, zero)
    top = fitted.transform(certificate.logits).argmax(1)
    assert (top != certificate.logits.argmax(1)).any()  # it is another classifier

    def wrong(points):
        return -margin(_transform(fitted, net(points)), top)

    for share, breaks in ((0.9999, False), (3.0, True)):
        found = apgd(wrong, x, radii * share, steps=30, generator=torch.Generator().manual_seed(0))
        changed = fitted.transform(certify(net, found).logits).argmax(1) != top
        assert bool(changed[radii > 0].any()) == breaks


def _transform(fitted, logits):
    """The map with its gradient, which `transform` does not carry."""
    features = logits.log_softmax(1) if "Dirichlet" in type(fitted).__name__ else logits - logits.mean(1, keepdim=True)
    return fitted.scale * features @ fitted.weight.T + fitted.bias


@pytest.mark.parametrize("name", ["vector", "matrix"])
def test_the_radius_of_an_orthogonal_linear_network_is_the_distance_to_the_boundary(name):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 3)).double()
    with torch.no_grad():
        net[0].weight.copy_(2 * torch.linalg.qr(torch.randn(6, 3, dtype=torch.float64))[0].T)
    x = torch.randn(200, 6, dtype=torch.float64)
    certificate = certify(net, x, even_unconstrained=True)
    y = torch.distributions.Categorical(logits=certificate.logits * torch.tensor([0.4, 1.0, 1.7])).sample()
    fitted = calibrator(name).fit(certificate.logits, y)
    whole = _transform(fitted, net(torch.eye(6, dtype=torch.float64))) - _transform(
        fitted, net(torch.zeros(6, 6).double())
    )
    u, rows = fitted.transform(certificate.logits), whole.T.detach()  # (3, 6), the matrix of the calibrated network
    top = u.argmax(1)
    gaps = u.gather(1, top.unsqueeze(1)) - u
    distance = (gaps / (rows[top].unsqueeze(1) - rows).norm(dim=2)).nan_to_num(nan=torch.inf).amin(1)
    torch.testing.assert_close(recalibrated_radius(certificate, fitted, 1.0), distance, rtol=1e-7, atol=1e-8)


def test_no_softmax_gives_a_longer_gradient_than_the_corners():
    torch.manual_seed(0)
    differences = torch.randn(5, 5, dtype=torch.float64)
    gains = _gains(differences, on_log_p=True)
    p = torch.cat((torch.softmax(4 * torch.randn(2000, 5, dtype=torch.float64), 1), torch.eye(5, dtype=torch.float64)))
    lengths = (differences.unsqueeze(1) - differences.sum(1).view(-1, 1, 1) * p).norm(dim=2)
    torch.testing.assert_close(gains, lengths.amax(1), rtol=1e-8, atol=0)
