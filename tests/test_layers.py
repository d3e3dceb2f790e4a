"""Each layer is what it says: exact singular values in float64, and agreement with the peers' layers."""

import copy

import deel.torchlip as torchlip
import pytest
import torch
import torch.nn.functional as F
from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d

from conftest import dense
from lipscale.errors import UserError
from lipscale.layers import (
    BatchCentering,
    ConvexResidual,
    GroupSort2,
    L2NormPool2d,
    OrthoConv2d,
    OrthoLinear,
    PadToMultiple,
    Standardise,
    estimate_means,
    polar_factor,
)

SHAPES = [
    (3, 8, 3, 1),
    (8, 8, 3, 1),
    (8, 4, 3, 1),
    (4, 8, 3, 2),
    (3, 16, 3, 2),
    (8, 6, 1, 1),
    (4, 4, 2, 2),
    (3, 5, 5, 1),
]


@pytest.mark.parametrize(("inputs", "outputs"), [(5, 9), (9, 5), (7, 7), (4, 1)])
def test_all_singular_values_of_the_linear_layer_are_one(inputs, outputs):
    layer = OrthoLinear(inputs, outputs).double().eval()
    values = torch.linalg.svdvals(layer.weight)
    assert torch.allclose(values, torch.ones_like(values), atol=1e-13)


@pytest.mark.parametrize("channels_kernel_stride", SHAPES)
def test_the_convolution_is_orthogonal_on_the_torus(channels_kernel_stride):
    c_in, c_out, kernel, stride = channels_kernel_stride
    layer = OrthoConv2d(c_in, c_out, kernel, stride=stride, bias=False).double().eval()

    def on_torus(x):
        pad = kernel - 1
        return F.conv2d(F.pad(x, (0, pad, 0, pad), mode="circular"), layer.weight, stride=stride)

    values = torch.linalg.svdvals(dense(on_torus, (c_in, 6, 6)))
    assert torch.allclose(values, torch.ones_like(values), atol=1e-12)


@pytest.mark.parametrize("size", [5, 6, 7])
@pytest.mark.parametrize("channels_kernel_stride", SHAPES)
def test_zero_padding_never_expands_at_any_size(channels_kernel_stride, size):
    c_in, c_out, kernel, stride = channels_kernel_stride
    layer = OrthoConv2d(c_in, c_out, kernel, stride=stride).double().eval()
    assert torch.linalg.svdvals(dense(layer, (c_in, size, size))).max() <= 1 + 1e-12


@pytest.mark.parametrize("channels_kernel_stride", SHAPES)
def test_evaluation_weights_are_the_limit_of_the_peers_training_weights(channels_kernel_stride):
    c_in, c_out, kernel, stride = channels_kernel_stride
    layer = OrthoConv2d(c_in, c_out, kernel, stride=stride)
    for _ in range(20):  # the peer's power iteration settles by use
        training = layer.train().weight.detach()
    torch.testing.assert_close(layer.eval().weight, training, atol=2e-3, rtol=0)


def test_the_peer_kernel_with_our_padding_equals_the_peer_layer_with_zero_padding():
    ours = OrthoConv2d(3, 8, 3, bias=False)
    theirs = AdaptiveOrthoConv2d(3, 8, 3, padding=1, bias=False, padding_mode="zeros")
    theirs.load_state_dict(ours.peer.state_dict())
    x = torch.randn(2, 3, 9, 9)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=0)


def test_training_weights_have_gradients_and_evaluation_weights_let_inputs_have_them():
    for layer, x in ((OrthoConv2d(2, 4, 3), torch.randn(2, 2, 5, 5)), (OrthoLinear(4, 6), torch.randn(2, 4))):
        layer.train()(x).square().sum().backward()
        assert all(p.grad is not None for p in layer.parameters() if p.requires_grad)
        x.requires_grad_()
        layer.eval()(x).sum().backward()
        assert x.grad is not None


def test_polar_factor_of_a_rank_deficient_matrix_is_orthonormal():
    matrix = torch.randn(6, 2) @ torch.randn(2, 4)
    q = polar_factor(matrix)
    torch.testing.assert_close(q.T @ q, torch.eye(4, dtype=torch.float64), atol=1e-12, rtol=0)


class TestTheWeightCache:
    @pytest.fixture
    def layer(self):
        return OrthoConv2d(2, 4, 3).eval()

    def test_two_evaluations_are_bit_equal_and_share_the_weight(self, layer):
        x = torch.randn(1, 2, 6, 6)
        assert torch.equal(layer(x), layer(x))
        assert layer.weight is layer.weight

    def test_every_change_drops_it(self, layer):
        raw = next(p for p in layer.parameters() if p.requires_grad and p.ndim > 1)
        changes = {
            "parameter": lambda: raw.detach().add_(torch.randn_like(raw)),
            "scale": lambda: layer.sigma.fill_(3.0),
            "state": lambda: layer.load_state_dict(OrthoConv2d(2, 4, 3).state_dict()),
            "dtype": lambda: layer.double(),
            "data": lambda: (raw.data.add_(torch.randn_like(raw)), layer.train().eval()),
        }
        for name, change in changes.items():
            before = layer.weight
            change()
            assert not torch.equal(before.double(), layer.weight.double()), name

    def test_a_copy_has_a_cache_of_its_own(self, layer):
        layer.weight  # noqa: B018 (fills the cache)
        twin = copy.deepcopy(layer)
        twin.sigma.fill_(2.0)
        torch.testing.assert_close(twin.weight, 2 * layer.weight)

    def test_inference_mode_does_not_poison_it(self, layer):
        x = torch.randn(1, 2, 6, 6)
        with torch.inference_mode():
            layer(x)
        x.requires_grad_()
        layer(x).sum().backward()
        assert x.grad is not None


def test_group_sort_equals_torchlips_and_only_permutes():
    for shape in ((3, 8), (2, 6, 5, 5)):
        x = torch.randn(shape)
        y = GroupSort2()(x)
        torch.testing.assert_close(y, torchlip.GroupSort2()(x))
        torch.testing.assert_close(y.flatten(1).sort().values, x.flatten(1).sort().values)


def test_group_sort_names_an_odd_channel_count():
    with pytest.raises(UserError, match="even number, got 5"):
        GroupSort2()(torch.randn(2, 5))


def test_pooling_equals_torchlips_and_has_a_gradient_at_zero():
    x = torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(L2NormPool2d()(x), torchlip.ScaledAdaptativeL2NormPool2d()(x).flatten(1))
    zero = torch.zeros(1, 2, 4, 4, requires_grad=True)
    L2NormPool2d()(zero).sum().backward()
    assert zero.grad is not None
    assert zero.grad.isfinite().all()


def test_centering_in_training_equals_torchlips():
    x = torch.randn(6, 3, 4, 4)
    ours, theirs = BatchCentering(3).train(), torchlip.BatchCentering(3).train()
    torch.testing.assert_close(ours(x), theirs(x))


def test_estimated_means_are_the_training_means_at_every_depth_and_survive_a_change_of_scale():
    net = torch.nn.Sequential(
        OrthoConv2d(2, 4, 3), BatchCentering(4), GroupSort2(), OrthoConv2d(4, 4, 3), BatchCentering(4)
    )
    batches = [torch.randn(8, 2, 6, 6) + 1 for _ in range(3)]
    estimate_means(net.eval(), batches)
    seen = []
    for x in batches:
        y = net[0](x)
        seen.append(y.mean((0, 2, 3)))
    torch.testing.assert_close(net[1].mean, torch.stack(seen).mean(0))
    one = batches[0]
    estimate_means(net, [one])  # one batch: evaluation must then do exactly what training did
    centred = net(one).mean((0, 2, 3))
    torch.testing.assert_close(centred, torch.zeros(4), atol=1e-6, rtol=0)


def test_centering_in_evaluation_moves_nothing():
    layer = BatchCentering(3).eval()
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    layer(torch.randn(4, 3, 2, 2) + 5)
    assert all(torch.equal(before[k], v) for k, v in layer.state_dict().items())


def test_the_residual_is_a_convex_blend_with_a_scaled_skip():
    branch = OrthoLinear(4, 4, bias=False)
    block = ConvexResidual(branch).double().eval()
    block.scale.fill_(0.5)
    block.blend.data.fill_(0.7)
    x = torch.randn(3, 4, dtype=torch.float64)
    alpha = torch.sigmoid(torch.tensor(0.7, dtype=torch.float64))
    torch.testing.assert_close(block(x), alpha * branch(x) + (1 - alpha) * 0.5 * x)


def test_input_layers():
    x = torch.rand(2, 3, 5, 6)
    torch.testing.assert_close(Standardise([0.1, 0.2, 0.3])(x)[:, 1], x[:, 1] - 0.2)
    torch.testing.assert_close(Standardise([0.0] * 3, [1.0, 2.0, 4.0])(x)[:, 2], x[:, 2] / 4)
    padded = PadToMultiple(4)(x)
    assert padded.shape == (2, 3, 8, 8)
    torch.testing.assert_close(padded.norm(), x.norm())
    assert PadToMultiple(1)(x) is x


def test_impossible_convolutions_are_named():
    with pytest.raises(UserError, match="stride <= kernel_size"):
        OrthoConv2d(2, 2, 1, stride=2)
    with pytest.raises(UserError, match="at least 2 channels"):
        OrthoConv2d(1, 1, 3)
