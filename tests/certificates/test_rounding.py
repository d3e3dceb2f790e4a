"""The certificate holds in the arithmetic that computes it: its error is bounded, and tight samples do not break."""

import copy
import math

import pytest
import torch
from torch import nn

from lipscale import UserError, certify, estimate_means, export_plain, models, set_lipschitz
from lipscale.certificates import prove
from lipscale.certificates.affine import Affine
from lipscale.certificates.forward_error import forward_error, gamma
from lipscale.layers import OrthoLinear, Shift, Standardise, mirrored


def built(name: str, constant: float, seed: int = 0) -> tuple[nn.Module, tuple[int, ...]]:
    """A network at L, and the shape of its inputs."""
    torch.manual_seed(seed)
    nets = {
        "linear": (lambda: models.mlp(2, 32, 2, depth=1), (32,)),
        "mlp": (lambda: models.mlp(10, (1, 8, 8), 64, mean=[0.3]), (1, 8, 8)),
        "narrow mlp": (lambda: models.mlp(2, 64, 8), (64,)),
        "convnet": (lambda: models.convnet(10, 1, 4, mean=[0.3]), (1, 12, 12)),
        "patchnet": (lambda: mirrored(models.patchnet(10, 1, 4, image_size=16, depth=1)), (1, 16, 16)),
        "even and odd": (lambda: models.patchnet(10, 1, 8, image_size=(16, 24), mirror=True, mean=[0.3]), (1, 16, 24)),
        "resnet18": (lambda: models.resnet18(10, 3, 4, mean=[0.5] * 3), (3, 16, 16)),
    }
    make, shape = nets[name]
    net = make()
    for parameter in net.parameters():  # biases start at zero, which hides their part
        if parameter.ndim == 1:
            nn.init.normal_(parameter, std=0.1)
    set_lipschitz(net, constant)
    estimate_means(net.eval(), [torch.rand(16, *shape)])
    return net, shape


NETS = ["linear", "mlp", "narrow mlp", "convnet", "patchnet", "even and odd", "resnet18"]


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_no_forward_pass_is_farther_off_than_its_bound(name, scale):
    net, shape = built(name, 5.0)
    proof = prove(net, shape, dtype=torch.float32)
    x = scale * torch.randn(32, *shape)
    exact = prove(net, shape)(x).logits
    # the float64 network folds centering into biases in float32: that is a rounding, too, and within the bound
    off = (net(x).detach().double() - exact).norm(dim=1)
    bound = proof.error.at(x.flatten(1).double().norm(dim=1))
    assert (off <= bound).all()
    assert (bound < 0.5 * (1 + 5.0 * x.flatten(1).double().norm(dim=1))).all()  # and it says something


def test_the_error_of_a_sum_is_reached_up_to_a_constant():
    """A worst case for summation: the bound is no more than some ten times what can happen."""
    n = 2**15
    layer = nn.Sequential(nn.Linear(n, 2, bias=False)).eval()
    nn.init.constant_(layer[0].weight, 1 / math.sqrt(n))
    proof = prove(layer, (n,), dtype=torch.float32, even_unconstrained=True)
    assert proof.error.slope == pytest.approx(math.sqrt(2) * gamma(n + 2, 2**-24), rel=1e-3)


def test_the_parts_of_the_bound_by_hand():
    net = nn.Sequential(Standardise([0.5, 0.5]), Shift(torch.tensor([3.0, 4.0]))).eval()
    proof = prove(net, (2,), dtype=torch.float32, even_unconstrained=True)
    u = 2**-24
    # subtraction and division: 3 u (||x|| + ||mean||); then the shift: u (what came before + ||shift||)
    expected = Affine(3 * u + u, 3 * u * math.sqrt(0.5) + u * math.sqrt(0.5) + u * 5)
    assert proof.error.slope == pytest.approx(expected.slope, rel=1e-4)
    assert proof.error.offset == pytest.approx(expected.offset, rel=1e-4)


@pytest.mark.parametrize("name", NETS)
def test_in_float64_it_costs_no_radius(name):
    net, shape = built(name, 128.0)
    certificate = certify(net, torch.rand(16, *shape))
    assert (certificate.error.at(certificate.norms) < 1e-6).all()


def towards_the_boundary(proof, x: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    """Points at just under the radius, in the direction in which the runner-up gains most, in float32."""
    exact = prove_twin(proof)
    points = x.double().requires_grad_()
    top = exact(points).topk(2, 1)
    (gradient,) = torch.autograd.grad((top.values[:, 0] - top.values[:, 1]).sum(), points)
    direction = -gradient / gradient.flatten(1).norm(dim=1).view(-1, *[1] * (x.ndim - 1))
    step = radius.view(-1, *[1] * (x.ndim - 1)) * direction
    found = (x.double() + step).float()
    # rounding x' to float32 may take it out of the ball: step back until it is inside
    for _ in range(60):
        outside = (found.double() - x.double()).flatten(1).norm(dim=1) >= radius
        if not outside.any():
            break
        step = torch.where(outside.view(-1, *[1] * (x.ndim - 1)), step * (1 - 1e-6), step)
        found = (x.double() + step).float()
    inside = (found.double() - x.double()).flatten(1).norm(dim=1) < radius
    return found[inside], inside


def prove_twin(proof) -> nn.Module:
    return copy.deepcopy(proof.net).double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["linear", "narrow mlp", "mlp"])
@pytest.mark.parametrize("constant", [0.01, 0.1, 1.0, 10.0, 128.0])
def test_tight_samples_hold_one_by_one_in_grey_batches_and_beside_outliers(name, constant, dtype):
    attacked = 0
    for seed in range(4):
        net, shape = built(name, constant, seed)
        proof = prove(net, shape, dtype=dtype)
        grey = 0.3 + 1e-4 * torch.randn(8, *shape)
        outlier = torch.cat((1e6 * torch.ones(1, *shape), torch.rand(7, *shape)))
        for x in (*torch.rand(24, 1, *shape), grey, outlier, torch.rand(64, *shape)):
            certificate = proof(x)
            radius = certificate.radius()
            keep = radius > 0
            if not keep.any():
                continue
            points, inside = towards_the_boundary(proof, x[keep], radius[keep])
            if len(points) == 0:
                continue
            before = certificate.logits[keep][inside].argmax(1)
            with torch.no_grad():
                after = proof.net(points.to(dtype)).argmax(1)
            assert torch.equal(before, after)
            attacked += len(points)
    assert attacked > 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_rows_radius_does_not_depend_on_its_neighbours(dtype):
    net, shape = built("mlp", 8.0)
    proof = prove(net, shape, dtype=dtype)
    x = torch.rand(20, *shape)
    alone = torch.cat([proof(row).radius() for row in x.split(1)])
    beside = proof(torch.cat((x, 1e6 * torch.ones(3, *shape), 0.3 * torch.ones(8, *shape)))).radius()[:20]
    torch.testing.assert_close(alone, beside, rtol=1e-5, atol=1e-7)


def test_a_mirrored_network_proves_as_much_inside_of_a_users_own_module():
    net, shape = built("even and odd", 5.0)

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x)

    x = torch.rand(3, *shape)
    torch.testing.assert_close(certify(Own().eval(), x).radius(), certify(net, x).radius())


def test_an_unknown_module_is_taken_to_be_far_off_and_an_unseen_one_to_prove_nothing():
    class Odd(nn.Module):
        def forward(self, x):
            return x / 2

    from lipscale import register_rule
    from lipscale.bounds.walk import RULES, Walk

    register_rule(Odd, lambda module, bound: 0.5)
    try:
        net = nn.Sequential(Odd(), nn.Linear(3, 2)).eval()
        assert forward_error(net, Walk.over(net, (3,)), torch.float32).slope > 1e-2
        assert forward_error(net, Walk.over(net, (3,)), torch.float64).slope < 1e-9
    finally:
        del RULES[Odd]


class TestWhatAProofMustRefuse:
    def net(self):
        return models.mlp(3, 4, 8).eval()

    def test_hooks_and_replaced_methods_that_a_copy_would_drop(self):
        x = torch.rand(5, 4)
        hooked, replaced, normed = self.net(), self.net(), nn.Sequential(nn.Linear(4, 3)).eval()
        hooked.register_forward_hook(lambda module, inputs, output: output.flip(1))
        replaced.head.forward = lambda inputs: 2 * inputs
        nn.utils.spectral_norm(normed[0])
        for net in (hooked, replaced, normed):
            with pytest.raises(UserError, match="no Lipschitz rule can see"):
                certify(net, x, even_unconstrained=True)
            with pytest.raises(UserError, match="no Lipschitz rule can see"):
                export_plain(net)

    def test_reduced_precision_of_the_network_and_of_the_moment(self):
        with pytest.raises(UserError, match="float32 or float64"):
            certify(self.net().bfloat16(), torch.rand(5, 4))
        proof = prove(self.net(), (4,), dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(UserError, match="autocast"):
            proof(torch.rand(5, 4))
        with pytest.raises(UserError, match="takes float32 inputs"):
            proof(torch.rand(5, 4).double())

    def test_what_is_no_tensor(self):
        for inputs in ([[1.0, 2.0, 3.0, 4.0]], None, 3):
            with pytest.raises(UserError, match="expected a tensor of inputs"):
                certify(self.net(), inputs)


def test_a_subclass_does_not_inherit_the_error_of_its_base():
    class Hot(nn.ReLU):
        def forward(self, x):
            return (x + 1e5) - 1e5

    from lipscale.bounds.walk import RULES, Walk

    RULES[Hot] = lambda module, bound: 1.0
    try:
        net = nn.Sequential(Hot(), nn.Linear(3, 2)).eval()
        assert forward_error(net, Walk.over(net, (3,)), torch.float32).slope > 1e-2
    finally:
        del RULES[Hot]


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.Sequential(nn.Linear(1, 2), nn.Flatten()), (5000, 1)),  # a bias acts on every row
        (nn.Sequential(nn.Conv2d(1, 1, 2, stride=2, dilation=2, bias=False), nn.Flatten()), (1, 64, 64)),
        (nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), (4,)),
    ],
)
def test_biases_dilations_and_normalisations_count_in_full(net, shape):
    torch.manual_seed(0)
    if isinstance(net[0], nn.BatchNorm1d):
        net[0].running_mean.fill_(1e5)
        net[0].running_var.fill_(3.0)
    if isinstance(net[0], nn.Conv2d):
        nn.init.ones_(net[0].weight)
    net.eval()
    proof = prove(net, shape, dtype=torch.float32, even_unconstrained=True)
    x = torch.rand(8, *shape)
    off = (net(x).detach().double() - copy.deepcopy(net).double()(x.double()).detach()).norm(dim=1)
    assert (off <= proof.error.at(x.flatten(1).double().norm(dim=1))).all()
    if isinstance(net[0], nn.Conv2d):  # the sum of its taps on one phase, by hand
        assert proof.error.slope == pytest.approx(4 * gamma(6, 2**-24), rel=1e-3)


def test_a_module_at_two_sizes_proves_nothing_instead_of_something_wrong():
    shift = Shift(torch.ones(1))
    net = nn.Sequential(shift, nn.AvgPool2d(2), shift, nn.Flatten(), nn.Linear(4, 2)).eval()
    certificate = certify(net, torch.rand(3, 1, 4, 4), dtype=torch.float32, even_unconstrained=True)
    assert (certificate.radius() == 0).all()
    lower, upper = certificate.confidence(0.1)
    assert (lower == 0).all()
    assert (upper == 1).all()


def test_a_shift_of_the_input_behind_a_scaled_layer_is_refused():
    with pytest.raises(UserError, match="before every layer that carries a scale"):
        set_lipschitz(nn.Sequential(OrthoLinear(4, 4), Standardise([3.0] * 4), OrthoLinear(4, 2)), 2.0)
