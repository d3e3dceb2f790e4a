"""An ordinary network and its constrained twin: topology, bound, projection, training, certificates, refusals."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from conftest import centred, jacobian_norms, real_folder
from lipscale import (
    certify,
    data,
    export_plain,
    fit,
    get_lipschitz,
    layers,
    lipschitz_bound,
    lipschitzify,
    models,
    set_lipschitz,
)
from lipscale.attacks import pgd
from lipscale.bounds.constant import scaled_depth
from lipscale.errors import UserError
from lipscale.layers import BatchCentering, ConvexResidual, GroupSort2, OrthoConv2d, OrthoLinear, Scale, Standardise
from networks import NETWORKS, BasicBlock, ResNet18

SHAPE = (3, 32, 32)
DEPTHS = {"resnet18": 18, "vgg": 9, "mobilenet": 16}


@pytest.fixture(scope="module", params=NETWORKS)
def converted(request):
    """A network, its twin after noisy steps, in evaluation, and a batch."""
    torch.manual_seed(0)
    net = NETWORKS[request.param](width=4)
    twin = lipschitzify(net, SHAPE)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter += 0.3 * parameter.abs().mean().clamp(min=0.1) * torch.randn_like(parameter)
    x = torch.rand(8, *SHAPE)
    return request.param, net, centred(twin, x), x


def test_the_twin_has_the_same_outputs_and_as_many_scaled_layers_along_a_path(converted):
    name, net, twin, x = converted
    assert twin(x).shape == net.eval()(x).shape
    assert scaled_depth(twin) == DEPTHS[name]
    assert twin.report.endswith(f"L = 1 over {DEPTHS[name]} scaled layers along the path")
    ordinary = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.ReLU, nn.ReLU6)
    assert not any(type(module) in ordinary for module in twin.modules())


@pytest.mark.parametrize("constant", [0.1, 1.0, 10.0])
def test_the_bound_is_at_most_the_constant_and_logits_scale_exactly(converted, constant):
    _, _, twin, x = converted
    set_lipschitz(twin, 1.0)
    with torch.no_grad():
        at_one = twin(x)
        set_lipschitz(twin, constant)
        assert get_lipschitz(twin) == pytest.approx(constant, rel=1e-5)
        scaled = twin(x)
    assert float((scaled - constant * at_one).abs().max()) <= 1e-4 * constant * float(at_one.abs().max())
    assert lipschitz_bound(twin, SHAPE) <= constant * (1 + 1e-4)
    exact = copy.deepcopy(twin).double()
    set_lipschitz(exact, constant)
    assert lipschitz_bound(exact, SHAPE) <= constant * (1 + 1e-6)


def test_no_slope_that_gradients_find_exceeds_the_bound(converted):
    _, _, twin, x = converted
    set_lipschitz(twin, 3.0)
    exact = copy.deepcopy(twin).double()
    bound = lipschitz_bound(exact, SHAPE)
    assert jacobian_norms(exact, x[:1].double()).max() <= bound
    a, b = x.double().requires_grad_(), (x + 0.1 * torch.randn_like(x)).double().requires_grad_()
    for _ in range(6):
        slope = (exact(a) - exact(b)).norm(dim=1) / (a - b).flatten(1).norm(dim=1)
        assert float(slope.max()) <= bound
        for point, step in zip((a, b), torch.autograd.grad(slope.log().sum(), (a, b)), strict=True):
            point.data += 0.1 * step / step.flatten(1).norm(dim=1).view(-1, 1, 1, 1)


def test_it_is_exported_saved_and_copied(converted):
    name, _, twin, x = converted
    with torch.no_grad():
        expected = twin(x)
        torch.testing.assert_close(export_plain(twin)(x), expected, atol=1e-5, rtol=1e-4)
        fresh = lipschitzify(NETWORKS[name](width=4), SHAPE).eval()
        fresh.load_state_dict(twin.state_dict())
        torch.testing.assert_close(fresh(x), expected, rtol=0, atol=0)
        torch.testing.assert_close(pickle.loads(pickle.dumps(twin))(x), expected, rtol=0, atol=0)
    assert copy.deepcopy(twin).report == twin.report


def test_the_ordinary_network_is_followed_too(converted):
    """Its bound is large, and no slope exceeds it."""
    _, net, _, x = converted
    exact = copy.deepcopy(net).double().eval()
    bound = lipschitz_bound(exact, SHAPE)
    assert jacobian_norms(exact, x[:1].double()).max() <= bound


@pytest.fixture(scope="module")
def pictures():
    """400 of CIFAR-10, or where it is absent patterns that a network can learn."""
    torch.manual_seed(1)
    count = 400
    try:
        found = data.limit(data.load_dataset("cifar10", real_folder("cifar10")), count, seed=0).train
        return data.as_input(found.inputs), found.labels
    except pytest.skip.Exception:
        labels = torch.arange(count) % 10
        return (torch.rand(10, *SHAPE)[labels] + 0.3 * torch.randn(count, *SHAPE)).clamp(0, 1), labels


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_twin_trains_for_an_epoch_and_its_certificates_hold(name, pictures):
    inputs, labels = pictures
    twin = lipschitzify(NETWORKS[name](width=8), SHAPE)
    result = fit(twin, TensorDataset(inputs[:300], labels[:300]), epochs=1, batch_size=32, progress=False)
    assert result.net is twin
    assert result.lipschitz == pytest.approx(get_lipschitz(twin), rel=1e-4)
    x = inputs[300:]
    certificate = certify(twin, x)
    assert certificate.bound <= get_lipschitz(twin) * (1 + 1e-4)
    radius, answers = certificate.radius(), certificate.logits.argmax(1)
    assert (radius > 0).all()
    for share in (0.5, 0.999):
        epsilon = float(radius.median()) * share
        points = pgd(twin, x, answers, epsilon=epsilon, steps=10)
        moved = (points - x).flatten(1).double().norm(dim=1)
        held = moved < radius
        assert held.any()
        assert torch.equal(certify(twin, points).logits.argmax(1)[held], answers[held])


class TestTopology:
    def test_our_own_twin_comes_back(self):
        """Of the unconstrained convnet: the same parts as the constrained one has."""
        plain = models.convnet(5, 1, 4, parts=models.UNCONSTRAINED)
        twin = lipschitzify(plain, (1, 12, 12))
        expected = models.convnet(5, 1, 4)
        kinds = (layers.ScaledLayer, BatchCentering, GroupSort2, layers.L2NormPool2d, Standardise, layers.PadToMultiple)
        found, wanted = ([type(m) for m in net.modules() if isinstance(m, kinds)] for net in (twin, expected))
        assert found == wanted
        shapes = [[tuple(p.shape) for p in net.parameters() if p.ndim > 1] for net in (twin, expected)]
        assert shapes[0] == shapes[1]

    def test_a_block_computes_what_its_parts_do(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.block, self.head = BasicBlock(4, 8, 2), nn.Linear(8, 3)

            def forward(self, x):
                return self.head(self.block(x).mean((2, 3)))

        twin = lipschitzify(Net())
        set_lipschitz(twin, 8.0)  # three layers: sigma = 2
        x = torch.rand(5, 4, 6, 6)
        twin = centred(twin, x).double()
        block = twin.block_sum
        assert isinstance(block, ConvexResidual)
        assert float(block.sigma) == pytest.approx(4.0)
        branch, skip = block.branch(x.double()), block.skip(x.double())
        assert branch.shape == skip.shape == (5, 8, 3, 3)
        expected = GroupSort2()(0.5 * branch + 0.5 * 4.0 * skip).flatten(2).norm(dim=2)
        torch.testing.assert_close(twin(x.double()), twin.head(expected))

    def test_sums_within_sums_and_of_three(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))

            def forward(self, x):
                x = F.relu(self.a(x))
                y = x + self.b(x)
                return self.d(0.1 * self.c(F.relu(y)) + y + x)

        twin = lipschitzify(Net())
        x = torch.rand(20, 6)
        for constant in (0.5, 8.0):
            set_lipschitz(twin, constant)
            exact = copy.deepcopy(twin).double().eval()
            assert lipschitz_bound(exact, (6,)) == pytest.approx(constant, rel=1e-6)
            assert jacobian_norms(exact, x.double()).max() <= constant * (1 + 1e-6)

    @pytest.mark.parametrize(
        ("pool", "parts"),
        [
            (nn.MaxPool2d(3, 2, 1), [nn.MaxPool2d]),
            (nn.MaxPool2d(3, 2), [nn.MaxPool2d, Scale]),
            (nn.AvgPool2d(2), [nn.AvgPool2d, Scale]),
            (nn.AdaptiveAvgPool2d(3), [nn.AdaptiveAvgPool2d, Scale]),
            (nn.ReflectionPad2d(1), [nn.ReflectionPad2d, Scale]),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("size", [7, 8])
    def test_pools_keep_their_sizes_and_have_norm_one(self, pool, parts, size):
        net = nn.Sequential(nn.Conv2d(2, 2, 1), copy.deepcopy(pool))
        twin = lipschitzify(net, (2, size, size)).eval()
        assert [type(part) for part in list(twin)[1:]] == parts
        x = torch.rand(2, 2, size, size)
        assert twin(x).shape == net(x).shape
        assert lipschitz_bound(twin.double(), (2, size, size)) == pytest.approx(1, rel=1e-2)

    def test_what_is_set_carries_over(self):
        net = nn.Sequential(
            *(nn.Conv2d(4, 8, (3, 5), padding=(1, 2), dilation=(1, 2), groups=2), nn.LeakyReLU(inplace=True)),
            *(nn.Conv2d(8, 8, 3, padding="same", padding_mode="reflect"), nn.Dropout(0.3, inplace=True), nn.Flatten()),
        )
        twin = lipschitzify(net, (4, 6, 6))
        assert twin[0].kernel_size == (3, 5)
        assert (twin[0].dilation, twin[0].groups) == ((1, 2), 2)
        assert twin[2].padding_mode == "zeros"
        assert (twin[3].p, twin[3].inplace, twin[3].training) == (0.3, False, True)

    def test_odd_channels_keep_a_relu_and_our_own_layers_stay(self):
        net = nn.Sequential(Standardise([0.5] * 4), OrthoLinear(4, 5), nn.ReLU6(), nn.Linear(5, 2)).double()
        before = copy.deepcopy(net)
        twin = lipschitzify(net)
        assert [type(part) for part in twin] == [Standardise, OrthoLinear, nn.ReLU, OrthoLinear]
        torch.testing.assert_close(twin[1].source.matrix, net[1].source.matrix)
        assert next(twin.parameters()).dtype == torch.float64
        with torch.no_grad():
            twin[1].source.matrix.zero_()
        for a, b in zip(net.parameters(), before.parameters(), strict=True):
            torch.testing.assert_close(a, b)

    def test_a_depthwise_convolution_is_1_lipschitz_wherever_its_taps_are(self):
        for kernel, stride, dilation in ((3, 1, 1), (3, 2, 1), (5, 2, 1), (3, 1, 2), (3, 2, 2), ((1, 3), 1, 1)):
            conv = OrthoConv2d(6, 6, kernel, stride=stride, dilation=dilation, groups=6, bias=False).double().eval()
            with torch.no_grad():
                conv.source.taps += torch.randn_like(conv.source.taps)
            bound = lipschitz_bound(conv)
            assert bound <= 1 + 1e-9
            x = torch.randn(1, 6, 12, 12, dtype=torch.float64)
            jacobian = torch.autograd.functional.jacobian(conv, x).reshape(conv(x).numel(), -1)
            assert torch.linalg.matrix_norm(jacobian, 2) <= bound


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.f, self.g = nn.Linear(4, 4), nn.Linear(4, 4)


def own(function):
    return type("Own", (Shared,), {"forward": function})()


class TestRefusals:
    @pytest.mark.parametrize(
        ("net", "message"),
        [
            (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), r"no twin for LayerNorm \(1\): it divides by"),
            (nn.Sequential(nn.Linear(4, 4), nn.Softmax(1)), r"Softmax \(1\): L scales logits"),
            (nn.Sequential(nn.Linear(4, 4), nn.Tanh()), r"Tanh \(1\): it saturates"),
            (nn.Sequential(nn.Embedding(4, 4)), r"Embedding \(0\): its inputs are indices"),
            (nn.Sequential(nn.TransformerEncoderLayer(4, 2, 4)), r"TransformerEncoderLayer \(0\): attention"),
            (nn.Sequential(nn.Conv1d(4, 4, 3)), r"Conv1d \(0\): none is known"),
            (nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(4)), r"AdaptiveAvgPool2d \(1\): .*input_shape"),
            (nn.Sequential(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2, ceil_mode=True)), r"AvgPool2d \(1\): .*border"),
            (nn.Sequential(nn.Linear(4, 4), nn.Flatten(0)), r"Flatten \(1\): .*join samples"),
            (nn.Sequential(nn.ReLU()), "no scaled layer"),
            (own(lambda m, x: m.f(x) * m.g(x)), "mul multiplies or divides values by values"),
            (own(lambda m, x: torch.softmax(m.f(x), 1)), "softmax has no Lipschitz rule"),
            (own(lambda m, x: m.f(x) - m.g(x)), "sub joins values otherwise than by a sum"),
            (own(lambda m, x: torch.cat([m.f(x), m.g(x)], 1)), "cat joins values otherwise"),
            (own(lambda m, x: m.f(m.f(x))), "runs one Linear in two places"),
            (own(lambda m, x: m.f(x) + 1.0), "would not scale with L"),
            (own(lambda m, x: m.f(x) + m.g.bias), "lipscale.layers.Standardise"),
            (own(lambda m, x: m.f(x) if x.sum() > 0 else x), "torch.fx cannot follow it"),
            (own(lambda m, x: m.f(x).view(2, 2, -1)), "view.*rearranges values|no twin"),
            (own(lambda m, x: F.dropout(m.f(x), 0.5)), "drops by chance"),
            (own(lambda m, x: (m.f(x), m.g(x))), "no single tensor"),
            (own(lambda m, x: (lambda y: m.g(y) + y)(m.f(x))), None),
            (own(lambda m, x: (lambda y, z: (z + m.g(y)) + y)(m.f(x), x)), "one within the other"),
        ],
        ids=str,
    )
    def test_by_name_and_with_the_reason(self, net, message):
        if message is None:  # a neighbour of one that is refused
            assert scaled_depth(lipschitzify(net)) == 2
            return
        with pytest.raises(UserError, match=message):
            lipschitzify(net)

    def test_work_in_place_whose_result_nobody_takes(self):
        def forward(m, x):
            y = m.f(x)
            F.relu(y, inplace=True)
            return y

        with pytest.raises(UserError, match="nobody reads"):
            lipschitzify(own(forward))

    def test_hooks_and_shapes(self):
        net = ResNet18(width=4)
        net.layer1.register_forward_hook(lambda m, i, o: 2 * o)
        with pytest.raises(UserError, match="forward hooks"):
            lipschitzify(net)
        with pytest.raises(UserError, match="does not take inputs of shape"):
            lipschitzify(ResNet18(width=4), (1, 8, 8))
