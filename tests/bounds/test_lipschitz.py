"""The projection identity, and the bound against exact Jacobians."""

import copy

import pytest
import torch
from schedulefree import AdamWScheduleFree
from torch import nn

from conftest import centred, jacobian_norms
from lipscale import models
from lipscale._files import load_tensors, save_tensors
from lipscale.bounds import lipschitz_bound
from lipscale.bounds.constant import get_lipschitz, scaled_depth, set_lipschitz
from lipscale.errors import UserError
from lipscale.layers import BatchCentering, ConvexResidual, GroupSort2, OrthoLinear, Standardise
from lipscale.layers.evaluation import evaluation_mode

CONSTANTS = [0.01, 0.1, 1.0, 10.0, 128.0]
NETWORKS = {
    "mlp": (lambda: models.mlp(10, 12, 16, mean=[0.3] * 12), (12,)),
    "convnet": (lambda: models.convnet(4, 1, 4, mean=[0.3]), (1, 9, 9)),
    "resnet18": (lambda: models.resnet18(5, 2, 4, mean=[0.3, 0.4]), (2, 16, 16)),
}


@pytest.fixture(params=NETWORKS)
def trained(request):
    """A network after a few real optimizer steps at L = 3, its optimizer, and a batch."""
    make, shape = NETWORKS[request.param]
    net = make().train()
    optimizer = AdamWScheduleFree([p for p in net.parameters() if p.requires_grad], lr=5e-3)
    optimizer.train()
    set_lipschitz(net, 3.0)
    x, y = torch.rand(16, *shape), torch.randint(4, (16,))
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net, optimizer, x


def relative_error(actual, expected):
    return float((actual - expected).abs().max() / expected.abs().max())


@torch.no_grad()
def assert_homogeneous(net, x):
    """z scales as L'/L between all pairs of constants."""
    unit = []
    for constant in CONSTANTS:
        set_lipschitz(net, constant)
        assert get_lipschitz(net) == pytest.approx(constant, rel=1e-5)
        unit.append(net(x) / constant)
    for z in unit[1:]:
        assert relative_error(z, unit[0]) < 1e-4


def test_projection_multiplies_the_logits_in_training_and_averaged_weights(trained):
    net, optimizer, x = trained
    assert_homogeneous(net, x)
    optimizer.eval()
    with evaluation_mode(net):
        assert_homogeneous(net, x)  # with the running means
        assert_homogeneous(centred(net, x), x)
    optimizer.train()
    assert_homogeneous(net, x)


def test_projection_survives_saving_and_loading(trained, tmp_path, request):
    net, optimizer, x = trained
    optimizer.eval()
    with evaluation_mode(net):
        set_lipschitz(centred(net, x), 10.0)
        before = net(x)
        save_tensors(tmp_path / "net", net.state_dict(), {})
        fresh = NETWORKS[request.node.callspec.params["trained"]][0]().eval()
        fresh.load_state_dict(load_tensors(tmp_path / "net")[0])
        assert get_lipschitz(fresh) == get_lipschitz(net)
        assert torch.equal(fresh(x), before)
        assert_homogeneous(fresh, x)


@pytest.mark.parametrize("constant", CONSTANTS)
def test_the_bound_is_the_constant_and_no_jacobian_exceeds_it(trained, constant):
    net, optimizer, x = trained
    optimizer.eval()
    with evaluation_mode(net):
        exact = copy.deepcopy(centred(net, x)).double()
        set_lipschitz(exact, constant)
        bound = lipschitz_bound(exact)
        assert bound == pytest.approx(constant, rel=1e-9)
        with torch.enable_grad():
            norms = jacobian_norms(exact, x[:3].double())
        assert norms.max() <= bound * (1 + 1e-9)
        assert norms.max() > 1e-3 * bound  # the bound is of this network, not of nothing


def test_in_float32_the_bound_counts_the_rounding_of_the_weights():
    net = models.resnet18(10, 3, 8).eval()
    set_lipschitz(net, 0.01)
    assert 0.01 * (1 - 1e-5) < lipschitz_bound(net) < 0.01 * (1 + 1e-4)


def test_an_unscaled_skip_is_bounded_as_it_is():
    block = ConvexResidual(nn.Sequential(OrthoLinear(4, 4), OrthoLinear(4, 4))).double().eval()
    net = nn.Sequential(block).eval()
    set_lipschitz(net, 0.01)
    assert lipschitz_bound(net) == pytest.approx(0.01)
    block.sigma.fill_(1.0)  # what the paper's table would have
    assert lipschitz_bound(net) == pytest.approx(0.5 * 0.01 + 0.5)


def test_dividing_by_a_std_counts():
    net = nn.Sequential(Standardise([0.5, 0.5], [0.25, 0.5]), OrthoLinear(2, 2)).double().eval()
    assert lipschitz_bound(net) == pytest.approx(4.0)


def test_sigmas_and_scales_follow_the_path():
    net = nn.Sequential(OrthoLinear(4, 4), BatchCentering(4), OrthoLinear(4, 4))
    set_lipschitz(net, 9.0)
    assert [round(float(m.scale), 5) for m in net] == [3.0, 3.0, 9.0]
    assert [round(float(m.sigma), 5) for m in (net[0], net[2])] == [3.0, 3.0]
    assert scaled_depth(net) == 2


@pytest.mark.parametrize("constant", [0.0, -1.0, float("inf"), float("nan")])
def test_impossible_constants_are_refused(constant):
    with pytest.raises(UserError, match="expected a Lipschitz constant"):
        set_lipschitz(OrthoLinear(2, 2), constant)


def test_what_cannot_be_bounded_is_named():
    class Doubling(nn.Identity):
        def forward(self, x):
            return 2 * x

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = OrthoLinear(2, 2)

        def forward(self, x):
            return self.layer(self.layer(x))

    class Shuffled(nn.Sequential):
        def forward(self, x):
            return self[0](x) + self[1](x)

    for module in (nn.Softmax(1), Doubling(), Own(), Shuffled(nn.Identity(), nn.Identity())):
        with pytest.raises(UserError, match=type(module).__name__):
            lipschitz_bound(nn.Sequential(module).eval())
    with pytest.raises(UserError, match="Own"):
        set_lipschitz(Own(), 2.0)
    with pytest.raises(UserError, match="no scaled layer"):
        set_lipschitz(nn.Sequential(GroupSort2()), 2.0)
    with pytest.raises(UserError, match=r"call net.eval\(\)"):
        lipschitz_bound(OrthoLinear(2, 2).train())


def test_what_does_not_scale_is_refused():
    for module in (nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4)):
        with pytest.raises(UserError, match=f"{type(module).__name__} is not known to be positively homogeneous"):
            set_lipschitz(nn.Sequential(OrthoLinear(4, 4), module), 2.0)


def test_a_nan_weight_gives_no_bound():
    layer = OrthoLinear(2, 2).eval()
    with torch.no_grad():
        layer.source.matrix[0, 0] = float("nan")
    with pytest.raises(UserError, match=r"source.matrix holds NaN"):
        lipschitz_bound(layer)
