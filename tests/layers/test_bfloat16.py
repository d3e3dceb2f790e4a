"""What training computes in bfloat16 is what it computes in full precision, up to bfloat16's own rounding."""

import pytest
import torch
from torch import nn

from lipscale.layers import ConvexResidual, GroupSort2, HalfAbs
from lipscale.layers.projectors import ProjectorKernel

ROUNDING = 2**-8  # of a number; two digits and a half


def relative(a, b):
    return float((a.detach().double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize(("channels", "stride"), [((16, 16), 1), ((128, 128), 1), ((128, 192), 2)])
def test_a_reduced_kernel_and_its_gradient_are_the_exact_ones_but_for_rounding(channels, stride):
    torch.manual_seed(0)
    source = ProjectorKernel(*channels, 3, stride)
    towards = torch.randn_like(source.unit())
    gradients = {}
    for reduced in (False, True):
        source.zero_grad()
        kernel = source.unit(reduced=reduced)
        (kernel * towards).sum().backward()
        assert relative(kernel, source.exact_unit()) < (4 * ROUNDING if reduced else 1e-5)
        gradients[reduced] = [p.grad.clone() for p in source.parameters()]
    for coarse, fine in zip(gradients[True], gradients[False], strict=True):
        assert relative(coarse, fine) < 8 * ROUNDING


@pytest.mark.parametrize("activation", [GroupSort2(), HalfAbs()])
def test_activations_move_gradients_without_rounding_them(activation):
    x = torch.randn(4, 6, 5, 5).bfloat16().requires_grad_()
    towards = torch.randn_like(x)
    activation(x).backward(towards)
    wide = x.detach().double().requires_grad_()
    activation(wide).backward(towards.double())
    assert torch.equal(x.grad.double(), wide.grad)


def test_the_gradient_of_a_blend_adds_up_in_more_than_bfloat16():
    torch.manual_seed(0)
    # terms of one sign: a sum in bfloat16 stops growing where a term is below its last digit, at some 256 of them
    x, towards = torch.rand(64, 8, 16, 16).bfloat16(), torch.rand(64, 8, 16, 16).bfloat16()
    found = {}
    for dtype in (torch.bfloat16, torch.float64):
        block = ConvexResidual(nn.Identity(), nn.ReLU()).to(dtype)
        block.sigma.fill_(0.25)
        block(x.to(dtype)).backward(towards.to(dtype))
        found[dtype] = block.blend.grad
    assert relative(found[torch.bfloat16], found[torch.float64]) < 4 * ROUNDING
