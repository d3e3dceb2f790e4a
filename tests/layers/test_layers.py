"""Orthogonal linear layers and convolutions: their singular values, and the reference libraries'."""

import pytest
import torch
import torch.nn.functional as F
from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d
from orthogonium.layers.conv.AOC.rko_conv import RKOParametrizer

from conftest import dense
from lipscale.bounds import lipschitz_bound
from lipscale.errors import UserError
from lipscale.layers import (
    OrthoConv2d,
    OrthoLinear,
    polar_factor,
)
from lipscale.layers.conv import ProjectorKernel
from lipscale.layers.linear import FrameMatrix
from lipscale.layers.reference import PeerKernel, PeerMatrix

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
    stride = ours.stride[0]
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
