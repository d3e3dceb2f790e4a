"""Sorting, patches, mirror images and pooling: isometries and averages, and torchlip's where it has them."""

import deel.torchlip as torchlip
import pytest
import torch

from lipscale import get_lipschitz, models, set_lipschitz
from lipscale.bounds import lipschitz_bound
from lipscale.errors import UserError
from lipscale.layers import (
    GroupSort2,
    HalfAbs,
    L2NormPool2d,
    Patches,
    evaluation_mode,
    mirrored,
)


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
