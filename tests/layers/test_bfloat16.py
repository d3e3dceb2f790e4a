"""What training computes in bfloat16 is what it computes in full precision, up to bfloat16's own rounding."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lipscale.layers import ConvexResidual, GroupSort2, HalfAbs, OrthoConv2d
from lipscale.layers.conv import FEW_PIXELS
from lipscale.layers.projectors import ProjectorKernel

ROUNDING = 2**-8  # of a number; two digits and a half


def relative(a, b):
    return float((a.detach().double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize(("channels", "stride"), [((128, 128), 1), ((128, 192), 2)])
def test_a_reduced_kernel_and_its_gradient_are_the_exact_ones_but_for_rounding(channels, stride):
    torch.manual_seed(0)
    source = ProjectorKernel(*channels, 3, stride)
    towards = torch.randn_like(source.unit())
    gradients = {}
    for reduced in (False, True):
        source.zero_grad()
        kernel = source.unit(reduced=reduced)
        (kernel * towards).sum().backward()
        error = relative(kernel, source.exact_unit())
        assert ROUNDING / 8 < error < 4 * ROUNDING if reduced else error < 1e-5
        gradients[reduced] = [p.grad.clone() for p in source.parameters()]
    for coarse, fine in zip(gradients[True], gradients[False], strict=True):
        assert relative(coarse, fine) < 8 * ROUNDING


@pytest.mark.parametrize(
    ("dtype", "autocast", "coarse"),
    [
        (torch.float32, torch.bfloat16, True),
        (torch.float32, torch.float16, False),  # which has three more bits
        (torch.float64, torch.bfloat16, False),  # autocast leaves it as it is
        (torch.float32, None, False),
    ],
)
def test_kernels_are_reduced_only_where_they_are_rounded_to_bfloat16(dtype, autocast, coarse):
    layer = OrthoConv2d(128, 128, 3).to(dtype)
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        error = relative(layer.weight, layer.source.exact_unit())
    assert (error > 1e-5) == coarse


def sorted_pairs(x):
    a, b = x[:, 0::2], x[:, 1::2]
    return torch.stack((torch.where(a > b, b, a), torch.where(a > b, a, b)), 2).flatten(1, 2)


def folded(x):
    a, b = x.chunk(2, 1)
    return torch.cat((torch.where(a < 0, -a, a), b), 1)


@pytest.mark.parametrize(("activation", "plain"), [(GroupSort2(), sorted_pairs), (HalfAbs(), folded)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_activations_move_gradients_without_rounding_them(activation, plain, dtype, layout):
    x = torch.randn(4, 6, 5, 5).to(dtype).contiguous(memory_format=layout)
    towards = torch.randn(4, 6, 5, 5).to(dtype) * 10 ** torch.linspace(-6, 6, 6).view(-1, 1, 1).to(dtype)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    activation(ours).backward(towards)
    plain(theirs).backward(towards)
    assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("branch", [nn.ReLU(), nn.Softplus(20.0)])  # one that differs much from its skip, one hardly
def test_the_gradient_of_a_blend_adds_up_in_more_than_bfloat16(branch):
    torch.manual_seed(0)
    x, towards = torch.randn(64, 8, 16, 16).bfloat16(), torch.rand(64, 8, 16, 16).bfloat16()
    found = {}
    for dtype in (torch.bfloat16, torch.float64):
        block = ConvexResidual(branch, nn.ReLU() if isinstance(branch, nn.Softplus) else None).to(dtype)
        block.sigma.fill_(1.0)
        block(x.to(dtype)).backward(towards.to(dtype))
        found[dtype] = block.blend.grad
    assert relative(found[torch.bfloat16], found[torch.float64]) < 8 * ROUNDING


@pytest.mark.parametrize("shape", [(8,), (3, 8), (0, 8)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_gradient_of_a_blend_for_any_number_of_axes(shape, dtype):
    block = ConvexResidual(nn.Linear(8, 8)).to(dtype)
    x = torch.randn(shape).to(dtype)
    block(x).sum().backward()  # its gradient is expanded, which is not contiguous
    alpha = block.alpha.detach().double()
    expected = alpha * (1 - alpha) * (block.branch(x) - x).double().sum()
    torch.testing.assert_close(block.blend.grad.double(), expected.detach(), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_convolution_on_few_pixels_is_a_product_of_matrices(layout, autocast, monkeypatch):
    torch.manual_seed(0)
    layer, twin = OrthoConv2d(6, 10, 1), OrthoConv2d(6, 10, 1)
    twin.load_state_dict(layer.state_dict())
    side = int(FEW_PIXELS**0.5)
    x = torch.randn(3, 6, side, side).contiguous(memory_format=layout)
    towards = torch.randn(3, 10, side, side)
    results = []
    for net, few in ((layer, FEW_PIXELS), (twin, 0)):
        monkeypatch.setattr("lipscale.layers.conv.FEW_PIXELS", few)
        assert net._has_few_pixels(x) == bool(few)
        inputs = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = net(inputs)
        (y * towards).sum().backward()
        results.append((y, inputs.grad, *(p.grad for p in net.parameters())))
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype
        assert relative(ours, theirs) < (4 * ROUNDING if autocast else 1e-6)


def test_what_is_no_product_stays_a_convolution():
    x = torch.randn(2, 6, 4, 4)
    for net in (OrthoConv2d(6, 6, 3), OrthoConv2d(6, 6, 1, groups=2), OrthoConv2d(6, 6, 1, padding=1)):
        assert not net._has_few_pixels(x)
        torch.testing.assert_close(
            net(x), F.conv2d(x, net.weight, net.scaled_bias(), 1, net.padding, groups=net.groups)
        )
    layer = OrthoConv2d(6, 6, 1)
    assert not layer._has_few_pixels(x[0])  # a single picture, without an axis of samples
    assert not layer._has_few_pixels(x[..., :0])
    assert not layer.eval()._has_few_pixels(x)
