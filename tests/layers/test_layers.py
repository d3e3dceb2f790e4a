"""Each layer is what it says: exact singular values in float64, and agreement with the peers' layers."""

import copy
import math
from functools import partial
from unittest import mock

import deel.torchlip as torchlip
import pytest
import torch
import torch.nn.functional as F
from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d
from orthogonium.layers.conv.AOC.rko_conv import RKOParametrizer

from conftest import centred, dense
from lipscale import export_plain, get_lipschitz, models, set_lipschitz
from lipscale._files import load_tensors, save_tensors
from lipscale.bounds import lipschitz_bound
from lipscale.errors import UserError
from lipscale.layers import (
    BatchCentering,
    ConvexResidual,
    GroupSort2,
    HalfAbs,
    L2NormPool2d,
    OrthoConv2d,
    OrthoLinear,
    PadToMultiple,
    Patches,
    Standardise,
    batch_means,
    estimate_means,
    evaluation_mode,
    mirrored,
    polar_factor,
)
from lipscale.layers.centering import _Centre
from lipscale.layers.conv import ProjectorKernel
from lipscale.layers.kernel import compose
from lipscale.layers.linear import FrameMatrix
from lipscale.layers.orthogonal import exact_orthonormal, orthonormal
from lipscale.layers.reference import PeerKernel, PeerMatrix
from lipscale.models import LIPSCHITZ, UNCONSTRAINED, convnet, mlp, resnet18

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


FAST = {"conv": ProjectorKernel, "linear": FrameMatrix}
PEERS = {"conv": PeerKernel, "linear": PeerMatrix}


@pytest.fixture(params=[FAST, PEERS], ids=["fast", "reference"])
def source(request):
    """Where the weights come from: every test of the one layer interface runs on both."""
    return request.param


def conv(source, shape, **options):
    c_in, c_out, kernel, stride = shape
    return OrthoConv2d(c_in, c_out, kernel, stride=stride, source=source["conv"], **options)


def on_torus(weight, stride):
    """The convolution as an operator on a periodic grid."""
    pad = weight.shape[-1] - 1
    return lambda x: F.conv2d(F.pad(x, (0, pad, 0, pad), mode="circular"), weight, stride=stride)


@pytest.mark.parametrize(("inputs", "outputs"), [(5, 9), (9, 5), (7, 7), (4, 1)])
def test_all_singular_values_of_the_linear_layer_are_one(inputs, outputs, source):
    layer = OrthoLinear(inputs, outputs, source=source["linear"]).double().eval()
    values = torch.linalg.svdvals(layer.weight)
    assert torch.allclose(values, torch.ones_like(values), atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_convolution_is_orthogonal_on_the_torus(shape, source):
    layer = conv(source, shape, bias=False).double().eval()
    values = torch.linalg.svdvals(dense(on_torus(layer.weight, shape[3]), (shape[0], 6, 6)))
    assert torch.allclose(values, torch.ones_like(values), atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 4, 3, 2), (1, 7, 3, 1), (7, 1, 3, 1), (2, 9, 3, 2), (5, 4, 4, 2), (3, 40, 4, 3)])
def test_fast_kernels_exist_for_awkward_channel_counts(shape):
    layer = conv(FAST, shape, bias=False).double().eval()
    assert layer.weight.shape == (shape[1], shape[0], shape[2], shape[2])
    values = torch.linalg.svdvals(dense(on_torus(layer.weight, shape[3]), (shape[0], 6, 6)))
    assert torch.allclose(values, torch.ones_like(values), atol=1e-12)


@pytest.mark.parametrize("size", [5, 6, 7])
@pytest.mark.parametrize("shape", SHAPES)
def test_zero_padding_never_expands_at_any_size(shape, size, source):
    layer = conv(source, shape).double().eval()
    assert torch.linalg.svdvals(dense(layer, (shape[0], size, size))).max() <= 1 + 1e-12


class TestCircularPadding:
    @pytest.mark.parametrize("size", [4, 6])
    @pytest.mark.parametrize("shape", [(3, 8, 3, 1), (8, 4, 3, 1), (4, 8, 3, 2), (3, 5, 5, 1), (8, 6, 1, 1)])
    def test_makes_it_orthogonal_up_to_the_border(self, shape, size, source):
        layer = conv(source, shape, padding_mode="circular").double().eval()
        values = torch.linalg.svdvals(dense(layer, (shape[0], size, size)))
        assert torch.allclose(values, torch.ones_like(values), atol=1e-12)
        assert lipschitz_bound(layer) == pytest.approx(1, abs=1e-9)
        assert lipschitz_bound(layer, (shape[0], size, size)) == pytest.approx(1, abs=1e-9)

    def test_equals_torchs(self):
        ours = OrthoConv2d(4, 6, 3, padding_mode="circular").eval()
        theirs = torch.nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular")
        theirs.load_state_dict({"weight": ours.weight, "bias": ours.bias.detach()})
        x = torch.randn(2, 4, 7, 7)
        torch.testing.assert_close(ours(x), theirs(x))

    def test_refuses_the_sizes_on_which_it_would_expand(self):
        layer = OrthoConv2d(4, 8, 3, stride=2, padding_mode="circular").eval()
        with pytest.raises(UserError, match="expand distances on inputs of 7 x 6"):
            layer(torch.randn(1, 4, 7, 6))

    def test_other_paddings_are_refused(self):
        with pytest.raises(UserError, match="padding_mode 'reflect' would expand distances"):
            OrthoConv2d(2, 2, 3, padding_mode="reflect")


@pytest.mark.parametrize("shape", [*SHAPES, (4, 4, 4, 1), (4, 6, 4, 2), (6, 2, 5, 2), (3, 24, 4, 2), (3, 20, 2, 2)])
def test_every_kernel_of_the_reference_is_one_of_ours(shape):
    """Equal to the last digits, and with fewer parameters: what the peer has more of can be absorbed."""
    ours, theirs = conv(FAST, shape).double().eval(), conv(PEERS, shape).double().eval()
    set_from_reference(ours.source, theirs.source.peer)
    torch.testing.assert_close(ours.weight, theirs.weight, atol=1e-12, rtol=0)
    count = lambda layer: sum(p.numel() for p in layer.source.parameters() if p.requires_grad)  # noqa: E731
    assert count(ours) <= count(theirs)


@torch.no_grad()
def set_from_reference(ours, peer):
    """Put orthogonium's matrices into our parametrisation: P c = c (c^T P c) moves its 1 x 1 factor c aside."""
    chains = peer.parametrizations
    if hasattr(chains, "weight_2"):
        strided, blocks = polar_factor(chains.weight_2.original.flatten(1)), polar_factor(chains.weight_1.original)[0]
    elif isinstance(chains.weight[-1], RKOParametrizer):
        strided, blocks = polar_factor(chains.weight.original.flatten(1)), None
    else:
        strided, blocks = None, polar_factor(chains.weight.original)[0]  # (2k, c, c // 2)
    if blocks is None:
        ours.matrix.copy_(strided if ours.on_outputs else strided.T)
        return
    reflections = torch.eye(blocks.shape[1], dtype=torch.float64) - 2 * blocks[:2] @ blocks[:2].mT
    square = reflections[0] @ reflections[1]
    width = len(blocks) // 2 - 1
    heights, widths = blocks[2 : 2 + width], blocks[2 + width :]
    order = list(range(width))
    groups = [[i] for i in order]  # from the input on; the peer pairs its factors first half with second half
    while len(groups) % 2 == 0 and len(groups) > 1:
        half = len(groups) // 2
        groups = [a + b for a, b in zip(groups[:half], groups[half:], strict=True)]
    order = [i for group in groups for i in group]
    if strided is None:
        ours.matrix.copy_(square[:, : ours.matrix.shape[1]])
        ours.frames.copy_(torch.stack([q for i in order for q in (widths[i], heights[i])]))
        return
    frames = torch.stack([q for i in reversed(order) for q in (heights[i], widths[i])])
    if ours.embedding is not None:
        ours.embedding.copy_(square[:, : ours.embedding.shape[1]])
        ours.matrix.copy_(strided.T)
        ours.frames.copy_(frames)
        return
    stride = ours.stride
    moved = torch.einsum("ci,ochw->iohw", square, strided.view(-1, len(square), stride, stride))
    ours.matrix.copy_(moved.permute(0, 2, 3, 1).reshape(ours.matrix.shape))
    ours.frames.copy_(square.T @ frames)


@pytest.mark.parametrize("shape", SHAPES)
def test_evaluation_weights_are_the_limit_of_the_training_weights(shape, source):
    layer = conv(source, shape)
    for _ in range(20):  # the peer's power iteration settles by use
        training = layer.train().weight.detach()
    tolerance = 1e-6 if source is FAST else 2e-3
    torch.testing.assert_close(layer.eval().weight, training, atol=tolerance, rtol=0)


def test_the_peer_kernel_with_our_padding_equals_the_peer_layer_with_zero_padding():
    ours = OrthoConv2d(3, 8, 3, bias=False, source=PeerKernel)
    theirs = AdaptiveOrthoConv2d(3, 8, 3, padding=1, bias=False, padding_mode="zeros")
    theirs.load_state_dict(ours.source.peer.state_dict())
    x = torch.randn(2, 3, 9, 9)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=0)


class TestGramSchmidt:
    @pytest.mark.parametrize("shape", [(3, 7, 4), (5, 5), (4, 9), (6, 1), (1, 1)])
    def test_its_gradient_is_exact_wherever_the_raw_matrix_is(self, shape):
        raw = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(orthonormal, (raw,))

    def test_it_is_the_q_of_qr(self):
        raw = torch.randn(3, 9, 5, dtype=torch.float64)
        q = orthonormal(raw)
        torch.testing.assert_close(q, exact_orthonormal(raw), atol=1e-9, rtol=0)
        r = q.mT @ raw
        torch.testing.assert_close(r.tril(-1), torch.zeros_like(r), atol=1e-9, rtol=0)
        assert (r.diagonal(dim1=-2, dim2=-1) > 0).all()

    def test_scale_and_shape_of_the_raw_matrix_leave_the_projector_alone(self):
        raw, mix = torch.randn(8, 4), torch.randn(4, 4) + 3 * torch.eye(4)
        for other in (1e-6 * raw, 1e6 * raw, raw @ mix):  # weight decay, growth, any other basis
            a, b = orthonormal(raw), orthonormal(other)
            torch.testing.assert_close(a @ a.mT, b @ b.mT, atol=1e-4, rtol=0)

    @pytest.mark.parametrize("condition", [1e1, 1e3, 1e5, 1e7])
    def test_ill_conditioned_frames_stay_sound_and_finite(self, condition):
        left, right = exact_orthonormal(torch.randn(32, 16)), exact_orthonormal(torch.randn(16, 16))
        raw = (left * torch.logspace(0, -math.log10(condition), 16) @ right).float()
        values = torch.linalg.svdvals(orthonormal(raw).double())
        assert values.max() < 1 + 1e-6 * condition
        exact = exact_orthonormal(raw)
        torch.testing.assert_close(exact.mT @ exact, torch.eye(16, dtype=torch.float64), atol=1e-12, rtol=0)

    def test_a_zero_or_rank_deficient_matrix_gives_no_nan(self):
        for raw in (torch.zeros(6, 4), torch.randn(6, 2) @ torch.randn(2, 4), torch.full((6, 4), 1e-25)):
            raw.requires_grad_()
            q = orthonormal(raw)
            q.square().sum().backward()
            assert q.isfinite().all()
            assert raw.grad.isfinite().all()
            exact = exact_orthonormal(raw)
            torch.testing.assert_close(exact.mT @ exact, torch.eye(4, dtype=torch.float64), atol=1e-12, rtol=0)


def test_handwritten_gradients_equal_numerical_ones_and_plain_operations():
    number = lambda *shape: torch.randn(shape, dtype=torch.float64, requires_grad=True)  # noqa: E731
    block_of_one = ConvexResidual(torch.nn.Identity()).double()
    block_of_one.sigma.fill_(1.7)
    centering = BatchCentering(3).double().train()
    cases = {
        "kernel": (compose, (number(4, 2, 1, 3), number(2, 4, 2))),
        "sort": (GroupSort2(), (number(2, 4, 3),)),
        "fold": (HalfAbs(), (number(2, 4, 3),)),
        "centering": (
            lambda x, b: torch.func.functional_call(centering, {"bias": b}, (x,)),
            (number(4, 3, 2), number(3)),
        ),
        "blend": (lambda x, b: torch.func.functional_call(block_of_one, {"blend": b}, (x,)), (number(2, 3), number())),
    }
    for name, (function, inputs) in cases.items():
        assert torch.autograd.gradcheck(function, inputs), name
        with mock.patch("torch.compiler.is_compiling", return_value=True):
            plain = function(*inputs)
        torch.testing.assert_close(function(*inputs), plain, msg=name)


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


def test_half_abs_is_group_sort_in_turned_coordinates():
    a, b = torch.randn(2, 7, 3, 5, 5, dtype=torch.float64)
    folded = HalfAbs()(torch.cat((b - a, b + a), 1) / 2**0.5)
    difference, total = (half * 2**0.5 for half in folded.chunk(2, 1))
    smaller, larger = GroupSort2()(torch.stack((a, b), 2).flatten(1, 2)).unflatten(1, (3, 2)).unbind(2)
    torch.testing.assert_close((total - difference) / 2, smaller)
    torch.testing.assert_close((total + difference) / 2, larger)
    with pytest.raises(UserError, match="even number, got 5"):
        HalfAbs()(torch.randn(2, 5))


@pytest.mark.parametrize("size", [2, 3])
def test_patches_are_torchs_pixel_unshuffle_in_another_order(size):
    x = torch.randn(2, 5, 4 * size, 3 * size)
    ours = Patches(size)(x).unflatten(1, (size**2, 5)).transpose(1, 2).flatten(1, 2)
    assert torch.equal(ours, torch.nn.functional.pixel_unshuffle(x, size))
    with pytest.raises(UserError, match=f"multiple of {size}, got 7 x 7"):
        Patches(size)(torch.randn(1, 1, 7, 7))


class TestMirrorAverage:
    @pytest.fixture
    def net(self):
        return mirrored(models.patchnet(4, 1, 4, image_size=16))

    def test_it_does_not_tell_an_image_from_its_mirror_image_and_keeps_the_head(self, net):
        x = torch.rand(3, 1, 16, 16)
        with evaluation_mode(net):
            torch.testing.assert_close(net(x), net(x.flip(-1)))
            whole = (net.features.net(x) + net.features.net(x.flip(-1))) / 2
            torch.testing.assert_close(net(x), net.head(whole))
        assert not torch.allclose(net(x), net(x.flip(-1)))  # in training

    def test_it_keeps_the_bound_and_scales_with_l(self, net):
        set_lipschitz(net, 3.0)
        assert get_lipschitz(net) == pytest.approx(3.0)
        with evaluation_mode(net):
            assert lipschitz_bound(net, (1, 16, 16)) == pytest.approx(3.0, rel=1e-5)
            before = net(torch.ones(1, 1, 16, 16))
            set_lipschitz(net, 6.0)
            torch.testing.assert_close(net(torch.ones(1, 1, 16, 16)), 2 * before, rtol=1e-4, atol=1e-5)


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
    layer = centred(BatchCentering(3), torch.randn(4, 3, 2, 2))
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    layer(torch.randn(4, 3, 2, 2) + 5)
    assert all(torch.equal(before[k], v) for k, v in layer.state_dict().items())


def deep():
    """Two centering layers, the second behind a first that shifts what it sees."""
    conv, norm = partial(OrthoConv2d, bias=False), BatchCentering
    return torch.nn.Sequential(conv(2, 4, 3), norm(4), GroupSort2(), conv(4, 4, 3), norm(4), L2NormPool2d())


class TestTheRunningMean:
    def test_it_is_an_average_at_first_and_then_forgets_as_batch_normalisation_does(self):
        layer, oracle = BatchCentering(3).double().train(), None
        for count in range(1, 30):
            x = torch.randn(6, 3, 4, 4, dtype=torch.float64) + count
            layer(x)
            weight = max(1 / count, 0.1)  # torch's momentum
            mean = x.mean((0, 2, 3))
            oracle = mean if oracle is None else (1 - weight) * oracle + weight * mean
            torch.testing.assert_close(layer.mean, oracle)
            assert layer.num_batches_tracked == count

    def test_it_equals_torchs_once_both_know_it(self):
        ours, theirs = BatchCentering(3).train(), torch.nn.BatchNorm2d(3).train()
        for _ in range(200):
            x = torch.randn(6, 3, 4, 4) + 2
            ours(x)
            theirs(x)
        torch.testing.assert_close(ours.mean, theirs.running_mean, atol=1e-5, rtol=0)

    def test_it_is_in_unit_scale_so_that_another_l_leaves_it_right(self):
        """The same batches at another L each, and at one: the same mean, and evaluation that scales with L."""
        net, other = deep(), deep()
        other.load_state_dict(net.state_dict())
        batches = [torch.randn(16, 2, 6, 6) + 1 for _ in range(5)]
        for x, constant in zip(batches, (0.01, 3.0, 100.0, 0.5, 7.0), strict=True):
            set_lipschitz(net, constant)
            for some in (net, other):
                some.train()(x)
        for ours, theirs in ((net[1], other[1]), (net[4], other[4])):
            torch.testing.assert_close(ours.mean, theirs.mean, atol=1e-6, rtol=1e-4)
        set_lipschitz(net, 4.0)
        x = torch.randn(3, 2, 6, 6)
        torch.testing.assert_close(net.eval()(x), 4 * other.eval()(x), atol=1e-5, rtol=1e-4)

    @pytest.mark.parametrize("constant", [1.0, 6.0])
    def test_evaluation_agrees_with_training_after_any_plain_training(self, digits, constant):
        """No call but net.eval(): the logits of a large batch are within 5 % of those in training.

        The learning rate comes down, as in any training that ends: a running mean lags behind weights that still move.
        """
        net, inputs, labels = convnet(10, 1, 8), digits.train.inputs, digits.train.labels
        set_lipschitz(net, constant)
        optimizer = torch.optim.Adam(net.parameters(), 5e-3)
        rates = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.03, total_iters=5 * 12)
        for _ in range(5):
            for batch in torch.randperm(len(inputs)).split(128):
                optimizer.zero_grad()
                F.cross_entropy(net(inputs[batch]), labels[batch]).backward()
                optimizer.step()
                rates.step()
        with torch.no_grad():
            evaluated = net.eval()(inputs)
            kept = {k: v.clone() for k, v in net.state_dict().items()}
            trained = net.train()(inputs)
        assert (evaluated - trained).norm() < 0.05 * trained.norm()
        fresh = convnet(10, 1, 8).eval()
        fresh.load_state_dict(kept)
        with torch.no_grad():
            assert torch.equal(fresh(inputs), evaluated)

    def test_it_survives_saving_and_loading(self, tmp_path):
        net, x = deep(), torch.randn(8, 2, 6, 6)
        for _ in range(3):
            net.train()(x)
        save_tensors(tmp_path / "net", net.state_dict(), {})
        again = deep().eval()
        again.load_state_dict(load_tensors(tmp_path / "net")[0])
        assert again[1].num_batches_tracked == 3
        assert torch.equal(again(x), net.eval()(x))
        for some in (net, again):
            some.train()(x + 1)  # and goes on from there
        assert torch.equal(again[4].mean, net[4].mean)

    def test_a_bfloat16_batch_is_tracked_in_full_precision(self):
        layer = BatchCentering(3).train()
        layer(torch.randn(4, 3, 2, 2).bfloat16())
        assert layer.mean.dtype == torch.float32


class TestMeansThatNobodyHasSet:
    def test_are_named_with_the_way_out(self):
        x = torch.rand(2, 1, 8, 8)
        for net in (convnet(3, 1, 4), resnet18(3, 1, 4), BatchCentering(1)):
            for use in (lambda net: net(x), lambda net: net.double()(x.double())):
                with pytest.raises(UserError, match=r"no mean yet: train the network first.*lipscale\.estimate_means"):
                    use(net.eval())
            with pytest.raises(UserError, match="estimate_means"):
                export_plain(net.float().eval())
            with pytest.raises(UserError, match="estimate_means"), evaluation_mode(net):
                net(x)
            estimate_means(net.eval(), [x])
            assert net(x).isfinite().all()
            export_plain(net)

    def test_a_twin_and_an_mlp_have_none_to_set(self):
        x = torch.rand(2, 1, 8, 8)
        for net in (mlp(3, (1, 8, 8), 4), convnet(3, 1, 4, parts=UNCONSTRAINED)):
            assert net.eval()(x).isfinite().all()

    def test_no_batch_sets_nothing(self):
        net = deep().eval()
        estimate_means(net, [])
        with pytest.raises(UserError, match="estimate_means"):
            net(torch.rand(2, 2, 6, 6))


class TestEstimatedMeans:
    def test_are_exact_at_every_depth_and_at_every_l(self):
        """The mean of each layer is the plain average over the batches, as training's forward pass sees them."""
        batches = [torch.randn(n, 2, 6, 6, dtype=torch.float64) * n + n for n in (4, 7, 5)]
        found = []
        for constant in (1.0, 9.0):
            net = deep().double()
            for parameter, seed in zip(net.parameters(), range(100), strict=False):
                torch.manual_seed(seed)
                torch.nn.init.normal_(parameter)  # biases among them
            set_lipschitz(net, constant)
            net.train()(100 + batches[0])  # what training has left is replaced
            expected, hooks = {1: [], 4: []}, []
            for place, seen in expected.items():
                hook = lambda m, inputs, seen=seen: seen.append(inputs[0].mean((0, 2, 3)) / m.scale)  # noqa: E731
                hooks.append(net[place].register_forward_pre_hook(hook))
            estimate_means(net.eval(), iter(batches))
            for place, seen in expected.items():
                assert len(seen) == 3
                torch.testing.assert_close(net[place].mean, torch.stack(seen).mean(0), rtol=1e-12, atol=1e-12)
            # the second layer saw what the first made of each batch by the batch's own mean, as in training
            for hook in hooks:
                hook.remove()
            centred_batches = [net[:4].train()(x) for x in batches]
            torch.testing.assert_close(
                net[4].scale * net[4].mean, torch.stack([y.mean((0, 2, 3)) for y in centred_batches]).mean(0),
                rtol=1e-9, atol=1e-9,
            )  # fmt: skip
            found.append(net.state_dict()["4.mean"])
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)  # in unit scale; sigma is a float32's root

    def test_only_the_means_change_and_the_mode_stays(self):
        net = deep().eval()
        before = {k: v.clone() for k, v in net.state_dict().items()}
        estimate_means(net, [torch.rand(4, 2, 6, 6)])
        changed = {k for k, v in net.state_dict().items() if not torch.equal(before[k], v)}
        assert changed == {"1.mean", "4.mean", "1.num_batches_tracked", "4.num_batches_tracked"}
        assert not any(module.training for module in net.modules())
        assert all(module._collected is None for module in (net[1], net[4]))

    @pytest.mark.parametrize("parts", [LIPSCHITZ, UNCONSTRAINED], ids=["constrained", "twin"])
    def test_a_network_in_training_is_put_into_evaluation_meanwhile(self, parts):
        net, batches = convnet(3, 1, 4, parts=parts), [torch.rand(4, 1, 8, 8) for _ in range(3)]
        for x in batches:
            net.train()(x)
        other = copy.deepcopy(net).eval()
        net.conv2.eval()  # frozen by its owner
        modes = [module.training for module in net.modules()]
        estimate_means(net, batches)
        estimate_means(other, batches)
        assert [module.training for module in net.modules()] == modes
        found = net.state_dict()
        assert all(torch.equal(value, found[name]) for name, value in other.state_dict().items())

    def test_batches_with_labels_are_named(self):
        net = deep().eval()
        with pytest.raises(UserError, match="batches of network inputs, without labels, got a tuple"):
            estimate_means(net, [(torch.rand(4, 2, 6, 6), torch.zeros(4))])
        assert all(module._collected is None for module in (net[1], net[4]))

    def test_within_batch_means_evaluation_does_what_training_does(self):
        net, x = deep().double(), torch.randn(6, 2, 6, 6, dtype=torch.float64)
        expected = net.train()(x).detach()
        with batch_means(net.eval()):
            torch.testing.assert_close(net(x), expected, atol=1e-6, rtol=1e-6)
        with pytest.raises(ZeroDivisionError), batch_means(net):
            raise ZeroDivisionError
        assert net[1]._collected is None


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 2), (3, 3, 2, 2)])
def test_the_handwritten_gradient_of_centering(shape):
    x, shift = torch.randn(shape, dtype=torch.float64, requires_grad=True), torch.randn(3, dtype=torch.float64)
    shift.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, s: _Centre.apply(x, s)[0], (x, shift))
    y, mean = _Centre.apply(x, shift)
    assert not mean.requires_grad  # the running mean is no part of the graph
    plain = x - x.mean([0, *range(2, x.ndim)]).view(-1, *[1] * (x.ndim - 2)) + shift.view(-1, *[1] * (x.ndim - 2))
    torch.testing.assert_close(y, plain)
    weight = torch.randn_like(y)
    for ours, theirs in zip(
        torch.autograd.grad((y * weight).sum(), (x, shift)),
        torch.autograd.grad((plain * weight).sum(), (x, shift)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


class TestEvaluationMode:
    def test_weights_written_through_data_in_evaluation_are_noticed(self):
        """Version counters miss `.data`, so plain evaluation keeps its weights; on entering they are computed anew."""
        for layer, x in ((OrthoLinear(4, 3), torch.randn(2, 4)), (OrthoConv2d(2, 4, 3), torch.randn(2, 2, 5, 5))):
            net = torch.nn.Sequential(layer).eval()
            before = net(x).detach()  # fills the cache
            raw = layer.source.matrix
            raw.data.copy_(torch.randn_like(raw))
            with evaluation_mode(net):
                after = net(x)
            assert not torch.equal(after, before)
            fresh = copy.deepcopy(net)
            fresh[0].drop_cache()
            assert torch.equal(after, fresh(x))

    def test_what_is_written_within_is_noticed_by_the_training_that_follows(self):
        net, x = torch.nn.Sequential(OrthoLinear(4, 3)).train(), torch.randn(2, 4)
        with evaluation_mode(net):
            net(x)
            net[0].source.matrix.data.copy_(torch.randn(net[0].source.matrix.shape))
        trained = net(x).detach()
        torch.testing.assert_close(net.eval()(x), trained, atol=1e-5, rtol=0)  # no cache outlives a stay in training

    def test_it_gives_every_module_its_mode_back_also_after_an_error(self):
        net = deep().train()
        net[3].eval()
        before = [module.training for module in net.modules()]
        with pytest.raises(ZeroDivisionError), evaluation_mode(net) as within:
            assert within is net
            assert not any(module.training for module in net.modules())
            assert not torch.is_grad_enabled()
            raise ZeroDivisionError
        assert [module.training for module in net.modules()] == before
        assert torch.is_grad_enabled()


def test_the_residual_is_a_convex_blend_with_a_scaled_skip():
    branch = OrthoLinear(4, 4, bias=False)
    block = ConvexResidual(branch).double().eval()
    block.sigma.fill_(0.5)
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


def test_torch_func_and_channels_last_see_the_same_network():
    x = torch.randn(2, 2, 8, 8, dtype=torch.float64)
    net = centred(resnet18(3, 2, 4).double(), x)
    torch.testing.assert_close(net(x.contiguous(memory_format=torch.channels_last)), net(x))
    ordinary = torch.autograd.functional.jacobian(lambda v: net(v[None])[0], x[0])
    torch.testing.assert_close(torch.func.jacrev(lambda v: net(v[None])[0])(x[0]), ordinary)
