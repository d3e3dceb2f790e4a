"""The composed bound: every rule against the dense operator or the steepest slope found."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from orthogonium.layers.residual import AdditiveResidual, ConcatResidual, PrescaledAdditiveResidual
from torch import nn

from conftest import exact_norm, jacobian_norms, ready
from lipscale import lipschitz_bound, register_rule
from lipscale.bounds.walk import RULES
from lipscale.errors import UserError
from lipscale.layers import Concatenate, ConvexResidual, GroupSort2, OrthoConv2d, OrthoLinear, Scale, Sum

CONVS = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "padding": 1, "stride": 2},
    {"kernel_size": 3, "padding": 2, "dilation": 2},
    {"kernel_size": 3, "padding": 2, "dilation": 2, "stride": 2},
    {"kernel_size": (1, 3), "padding": (0, 1)},
    {"kernel_size": (3, 1), "padding": (1, 0)},
    {"kernel_size": (3, 2), "padding": "same"},
    {"kernel_size": 2, "stride": 2},
    {"kernel_size": 3, "padding": 1, "groups": 2},
    {"kernel_size": 5, "padding": 2, "stride": 3},
    {"kernel_size": 1},
    {"kernel_size": 3, "padding": 3},
]


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("arguments", CONVS)
@pytest.mark.parametrize("size", [(5, 5), (6, 4), (7, 8)])
def test_convolutions_of_every_kind_are_bounded_with_and_without_a_shape(arguments, mode, size):
    conv = ready(nn.Conv2d(2, 4, **arguments, padding_mode=mode))
    try:
        exact = exact_norm(conv, (2, *size))
    except RuntimeError:
        pytest.skip("torch does not pad so much")
    given_shape, any_shape = lipschitz_bound(conv, (2, *size)), lipschitz_bound(conv)
    assert exact <= given_shape <= any_shape * (1 + 1e-9)


@pytest.mark.parametrize("arguments", [CONVS[0], CONVS[2], CONVS[8], {"kernel_size": 3, "padding": 1, "stride": 2}])
def test_circular_convolutions_at_a_stated_size_are_bounded_tightly(arguments):
    conv = ready(nn.Conv2d(2, 4, **arguments, padding_mode="circular"))
    exact = exact_norm(conv, (2, 6, 8))
    assert exact <= lipschitz_bound(conv, (2, 6, 8)) <= 1.01 * exact


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("arguments", [{"padding": 1}, {"padding": 2, "stride": 2}, {"padding": 2, "dilation": 2}])
def test_one_dimensional_convolutions(arguments, mode):
    conv = ready(nn.Conv1d(3, 2, 3, **arguments, padding_mode=mode))
    for size in (5, 8):
        exact = exact_norm(conv, (3, size))
        assert exact <= lipschitz_bound(conv, (3, size)) <= lipschitz_bound(conv) * (1 + 1e-9)


LINEAR = {
    "linear": (lambda: nn.Linear(7, 5), (7,), 1.01),
    "batch norm": (lambda: _used(nn.BatchNorm2d(3)), (3, 4, 4), 1.01),
    "average pool": (lambda: nn.AvgPool2d(2), (2, 6, 6), 1.01),
    "overlapping average pool": (lambda: nn.AvgPool2d(3, 2, 1), (2, 7, 7), 1.5),
    "adaptive average pool": (lambda: nn.AdaptiveAvgPool2d(1), (2, 5, 5), 1.01),
    "adaptive average pool to 3": (lambda: nn.AdaptiveAvgPool2d(3), (2, 7, 5), 1.01),
    "pixel unshuffle": (lambda: nn.PixelUnshuffle(2), (2, 4, 4), 1.01),
    "zero pad": (lambda: nn.ZeroPad2d(2), (2, 4, 4), 1.01),
    "reflection pad": (lambda: nn.ReflectionPad2d(2), (2, 6, 6), 1.01),
    "replication pad": (lambda: nn.ReplicationPad2d((1, 2, 0, 3)), (2, 6, 6), 1.01),
    "circular pad": (lambda: nn.CircularPad2d(1), (2, 6, 6), 1.01),
    "dropout": (lambda: nn.Dropout(0.5), (4,), 1.01),
    "flatten": (lambda: nn.Flatten(), (2, 3, 3), 1.01),
    "scale": (lambda: Scale(-3.0), (4,), 1.01),
    "concatenation": (lambda: Concatenate(nn.Linear(4, 3), Scale(2.0)), (4,), 1.5),
    "sum": (lambda: Sum(nn.Linear(4, 4)), (4,), 2.0),
    "concat residual": (lambda: ConcatResidual(nn.Linear(3, 3)), (6,), 1.6),
    "prescaled residual": (lambda: PrescaledAdditiveResidual(nn.Linear(4, 4)), (4,), 2.0),
    "additive residual": (lambda: AdditiveResidual(nn.Linear(4, 4)), (4,), 2.0),
}


def _used(norm):
    norm.train()(3 * torch.randn(50, 3, 4, 4) + 1)
    norm.weight.data = torch.tensor([1.0, -2.0, 0.5])
    return norm


@pytest.mark.parametrize("name", LINEAR)
def test_linear_modules_are_bounded_within_their_factor(name):
    make, shape, factor = LINEAR[name]
    module = ready(make())
    exact = exact_norm(module, shape)
    assert exact * (1 - 1e-12) <= lipschitz_bound(module, shape) <= factor * exact
    if "to 3" in name:
        with pytest.raises(UserError, match="input_shape"):
            lipschitz_bound(module)
    else:
        assert lipschitz_bound(module) >= exact * (1 - 1e-12)  # for every size, so for this one


ACTIVATIONS = [
    *(nn.ReLU(), nn.ReLU6(), nn.Tanh(), nn.Hardtanh(), nn.Softsign(), nn.Softshrink(), nn.LogSigmoid()),
    *(nn.LeakyReLU(0.1), nn.LeakyReLU(3.0), nn.PReLU(init=-2.0), nn.ELU(1.0), nn.ELU(2.0), nn.GELU(), nn.SiLU()),
    nn.Sigmoid(),
]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_no_activation_is_steeper_than_its_rule(activation):
    x = torch.linspace(-20, 20, 400_001, dtype=torch.float64).unsqueeze(1)
    y = ready(activation)(x).detach()
    slope = float(((y[1:] - y[:-1]) / (x[1:] - x[:-1])).abs().max())
    assert slope <= lipschitz_bound(activation) * (1 + 1e-6)
    assert slope >= 0.98 * lipschitz_bound(activation)  # and the rule is not a lazy one


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 1), nn.MaxPool2d(2, 2, dilation=2)], ids=repr
)
def test_max_pools(pool):
    net = nn.Sequential(pool, nn.Flatten()).eval()
    x = torch.randn(40, 1, 8, 8, dtype=torch.float64)
    assert jacobian_norms(net, x).max() <= lipschitz_bound(net) * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(
        st.sampled_from(["conv", "strided", "ortho", "relu", "sort", "residual", "sum", "cat"]), min_size=1, max_size=4
    ),
)
def test_random_architectures_never_exceed_their_bound(seed, parts):
    torch.manual_seed(seed)
    channels, layers = 2, []
    for part in parts:
        if part == "cat":
            layers.append(Concatenate(nn.Conv2d(channels, channels, 1), nn.Identity()))
            channels *= 2
            continue
        layers.append(
            {
                "conv": lambda c: nn.Conv2d(c, c, 3, padding=1, padding_mode="reflect"),
                "strided": lambda c: nn.Conv2d(c, c, 3, stride=2, padding=1),
                "ortho": lambda c: OrthoConv2d(c, c, 3),
                "relu": lambda c: nn.ReLU(),
                "sort": lambda c: GroupSort2(),
                "residual": lambda c: ConvexResidual(OrthoConv2d(c, c, 3)),
                "sum": lambda c: Sum(nn.Conv2d(c, c, 1)),
            }[part](channels)
        )
    net = nn.Sequential(*layers, nn.Flatten()).double().eval()
    shape = (2, 32, 32) if parts.count("strided") > 2 else (2, 9, 9)
    bound, shaped = lipschitz_bound(net), lipschitz_bound(net, shape)
    assert shaped <= bound * (1 + 1e-9)
    x = torch.randn(2, *shape, dtype=torch.float64)
    v = torch.randn_like(x)
    for _ in range(15):  # power iteration on the Jacobian: the steepest slope from below
        v = v / v.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        _, image = torch.func.jvp(net, (x,), (v,))
        assert image.norm(dim=1).max() <= shaped * (1 + 1e-9)
        (v,) = torch.func.vjp(net, x)[1](image)


def test_users_register_rules_in_one_line():
    class Swish(nn.Module):
        def forward(self, x):
            return x * torch.sigmoid(x)

    class Block(nn.Module):
        def __init__(self, branch):
            super().__init__()
            self.branch = branch

        def forward(self, x):
            return x + self.branch(x)

    net = nn.Sequential(Swish(), Block(Scale(2.0))).eval()
    with pytest.raises(UserError, match="Swish"):
        lipschitz_bound(net)
    register_rule(Swish, lambda module, bound: 1.1)
    register_rule(Block, lambda block, bound: 1 + bound(block.branch))
    try:
        assert lipschitz_bound(net) == pytest.approx(3.3)
    finally:
        del RULES[Swish], RULES[Block]


def test_orthogonal_layers_are_within_a_ten_thousandth_at_every_size():
    for layer in (OrthoConv2d(3, 8, 3), OrthoConv2d(8, 16, 3, stride=2), OrthoConv2d(16, 8, 1), OrthoLinear(9, 5)):
        layer.eval()
        shapes = [None] if isinstance(layer, OrthoLinear) else [None, *((layer.in_channels, n, n) for n in (4, 7, 9))]
        for shape in shapes:
            assert 1 - 1e-5 <= lipschitz_bound(layer, shape) <= 1 + 1e-4


def test_the_tightest_of_the_bounds_is_taken():
    # a kernel whose Gram bound is loose: ones, with the norm 9 at frequency zero
    conv = ready(nn.Conv2d(1, 1, 3, padding=1, bias=False))
    conv.weight.data.fill_(1.0)
    assert lipschitz_bound(conv) == pytest.approx(9, rel=1e-6)
    assert F.conv2d(torch.ones(1, 1, 50, 50), torch.ones(1, 1, 3, 3), padding=1).norm() / 50 < 9
    assert math.isclose(lipschitz_bound(nn.Sequential(conv, Scale(0.5)).eval()), 4.5, rel_tol=1e-6)
