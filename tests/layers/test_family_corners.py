"""Corners of the families that a reviewer broke: zeros, wrong shapes, small images, the start."""

import pytest
import torch

from conftest import dense
from lipscale import lipschitz_bound
from lipscale.errors import UserError
from lipscale.layers.families import FAMILIES

CIRCULAR = ("cayley", "lot", "bro")


def test_lot_starts_as_the_identity():
    layer, x = FAMILIES["lot"].conv(4, 4, 3, bias=False), torch.rand(2, 4, 6, 7)
    for mode in (True, False):
        torch.testing.assert_close(layer.train(mode)(x).abs(), x, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CIRCULAR)
def test_taps_are_those_around_a_pixel_and_wrap_around_on_small_images(name):
    layer = FAMILIES[name].conv(3, 3, 5, bias=False)
    layer(torch.rand(1, 3, 3, 3)).square().sum().backward()
    assert (layer.source.taps.grad.abs().sum((2, 3)) > 0).all()  # every tap counts
    values = torch.linalg.svdvals(dense(layer.double().eval(), (3, 3, 3)))
    assert values.max() <= 1 + 1e-9


@pytest.mark.parametrize("name", CIRCULAR)
def test_a_wrong_shape_is_named_and_decides_nothing(name):
    layer = FAMILIES[name].conv(3, 4, 3)
    for shape in ((2, 5, 9, 9), (3, 8, 8)):
        with pytest.raises(UserError, match=r"takes images \(B, 3, H, W\)"):
            layer(torch.rand(shape))
    with pytest.raises(UserError, match="seen no image yet"):
        _ = layer.weight
    assert layer(torch.rand(1, 3, 8, 8)).shape == (1, 4, 8, 8)


def test_a_convolution_that_would_mix_samples_has_no_bound():
    with pytest.raises(UserError, match="takes images"):
        lipschitz_bound(FAMILIES["soc"].conv(3, 3, 3, bias=False).eval(), (3, 5))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("lipnext", "aoc", "bcop")])
def test_zeros_pass_and_leave_no_trace(name):
    """A layer whose raw weights are zero for a moment works, is bounded, and works on when they are back."""
    layer, x = FAMILIES[name].conv(4, 4, 3, bias=False), torch.rand(1, 4, 6, 6)
    before = layer(x)
    taps = {key: value.clone() for key, value in layer.source.named_parameters()}
    with torch.no_grad():
        for parameter in layer.source.parameters():
            parameter.zero_()
        layer(x)
        assert layer.eval()(x).isfinite().all()
        assert lipschitz_bound(layer, (4, 6, 6)) <= 1 + 1e-5
        for key, parameter in layer.source.named_parameters():
            parameter.copy_(taps[key])
    torch.testing.assert_close(layer.train()(x), before, atol=0.05, rtol=0.05)


def test_patches_count_as_channels():
    conv = FAMILIES["lipnext"].conv(3, 3, 3, stride=2)
    assert conv(torch.rand(1, 3, 8, 8)).shape == (1, 3, 4, 4)
