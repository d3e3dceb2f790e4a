"""Features in an even and an odd part under reflection: what mirroring does to them, distances, and bounds."""

import pytest
import torch
from torch import nn

from lipscale import export_plain, get_lipschitz, lipschitz_bound, models, set_lipschitz
from lipscale.bounds import Walk
from lipscale.certificates.affine import Affine, Values
from lipscale.certificates.forward_error import _through
from lipscale.errors import UserError
from lipscale.layers import (
    BatchLast,
    Even,
    EvenOdd,
    EvenOddActivation,
    EvenOddMap,
    EvenOddPatches,
    GroupSort2,
    HalfAbs,
    OrthoConv2d,
    OrthoLinear,
    Shift,
)

BOTH = pytest.mark.parametrize("training", [True, False])


def mirrored(features):
    """What the features of an image are of its mirror image: R s and -R d."""
    s, d = features.flip(-1).chunk(2, 1)
    return torch.cat((s, -d), 1)


def stem(outputs=8):
    conv = OrthoConv2d(12, outputs, 3)
    nn.init.normal_(conv.bias)
    return EvenOdd(2, conv, HalfAbs()).double()


@BOTH
def test_the_parts_of_a_map_are_even_and_odd_and_add_up_to_it(training):
    x, lift = torch.rand(3, 3, 8, 12, dtype=torch.float64), stem().train(training)
    features = lift(x)
    torch.testing.assert_close(lift(x.flip(-1)), mirrored(features))
    s, d = features.chunk(2, 1)
    torch.testing.assert_close(s + d, lift.net(x))
    # and the squares of their norms are the mean of those of both sides
    both = lift.net(x).square().sum((1, 2, 3)) + lift.net(x.flip(-1)).square().sum((1, 2, 3))
    torch.testing.assert_close(features.square().sum((1, 2, 3)), both / 2)


@pytest.mark.parametrize(("height", "width"), [(2, 2), (1, 3), (4, 12), (2, 1)])
def test_patches_rotate_and_keep_what_is_even_and_odd(height, width):
    features = torch.randn(3, 10, 4, 12, dtype=torch.float64)
    patches = EvenOddPatches(height, width)
    made = patches(features)
    assert made.shape == (3, 10 * height * width, 4 // height, 12 // width)
    torch.testing.assert_close(made.square().sum((1, 2, 3)), features.square().sum((1, 2, 3)))
    torch.testing.assert_close(patches(mirrored(features)), mirrored(made))
    matrix = torch.func.vmap(patches)(torch.eye(480, dtype=torch.float64).view(480, 1, 10, 4, 12)).view(480, 480)
    torch.testing.assert_close(matrix @ matrix.mT, torch.eye(480, dtype=torch.float64))  # a rotation
    with pytest.raises(UserError, match="multiple of \\(3, 5\\), got 4 x 12"):
        EvenOddPatches(3, 5)(features)


def test_activations_work_on_both_sides_and_keep_what_is_even_and_odd():
    features = torch.randn(3, 8, 4, 6, dtype=torch.float64)
    for activation in (HalfAbs(), GroupSort2(), nn.ReLU()):
        both = EvenOddActivation(activation)
        torch.testing.assert_close(both(mirrored(features)), mirrored(both(features)))
        s, d = features.chunk(2, 1)
        left, right = activation((s + d) / 2**0.5), activation((s - d) / 2**0.5)
        expected = torch.cat((left + right, left - right), 1) / 2**0.5
        torch.testing.assert_close(both(features), expected)
    with pytest.raises(UserError, match="multiple of 4, got 6"):
        EvenOddActivation(HalfAbs())(torch.rand(1, 6, 2, 2))


def test_gradients_written_by_hand_are_those_of_the_formulas():
    x = torch.randn(2, 8, 4, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(EvenOddActivation(HalfAbs()), x)
    batch_last = torch.randn(8, 4, 6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: EvenOddPatches(2, 3)(t.permute(3, 0, 1, 2)), batch_last)
    same = EvenOddPatches(2, 3)(batch_last.permute(3, 0, 1, 2))
    torch.testing.assert_close(same, EvenOddPatches(2, 3)(batch_last.permute(3, 0, 1, 2).contiguous()))


def test_a_map_is_as_lipschitz_as_the_worse_of_its_parts():
    even, odd = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()
    both = EvenOddMap(even, odd).eval()
    matrix = torch.block_diag(even.weight, odd.weight)
    assert lipschitz_bound(both, (8,)) == pytest.approx(float(torch.linalg.matrix_norm(matrix.detach(), 2)), rel=1e-6)
    uneven = nn.Sequential(EvenOddMap(OrthoLinear(4, 3), nn.Sequential(OrthoLinear(4, 4), OrthoLinear(4, 3))))
    for ask in (lambda: set_lipschitz(uneven, 2.0), lambda: get_lipschitz(uneven)):
        with pytest.raises(UserError, match="even and the odd map disagree"):
            ask()
    assert all(float(m.sigma) == 1 for m in uneven.modules() if isinstance(m, OrthoLinear))


@pytest.mark.parametrize("module", [EvenOddActivation(nn.ReLU()), EvenOddMap(nn.Identity(), nn.Identity()), Even()])
def test_parts_that_are_not_halves_are_refused(module):
    """Of three channels d would be broadcast, and distances grow by sqrt(2)."""
    for x in (torch.rand(2, 3), torch.rand(2, 3, 4, 4)):
        with pytest.raises(UserError, match="even number, got 3"):
            module(x)
    with pytest.raises(UserError, match="even number of channels, got 3"):
        EvenOddPatches(2, 2)(torch.rand(2, 3, 4, 4))


class Doubled(OrthoConv2d):
    """A user's own, whose forward pass is another."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("conv", "activation"),
    [
        (OrthoConv2d(12, 8, (3, 5)), HalfAbs()),
        (OrthoConv2d(12, 8, 2, padding="same"), HalfAbs()),  # R K R pads on the other side
        (OrthoConv2d(12, 8, (3, 2), padding="same"), HalfAbs()),
        (OrthoConv2d(12, 8, 3), GroupSort2()),
        (Doubled(12, 8, 3), HalfAbs()),
    ],
)
def test_one_product_gives_what_both_images_give(conv, activation):
    nn.init.normal_(conv.bias)
    lift, x = EvenOdd(2, conv, activation).double().train(), torch.rand(3, 3, 8, 12, dtype=torch.float64)
    torch.testing.assert_close(lift(BatchLast()(x)), lift(x))


def test_export_folds_a_shift_into_the_convolution():
    net = nn.Sequential(EvenOdd(2, OrthoConv2d(12, 8, 3), Shift(torch.rand(8)))).double().eval()
    x = torch.rand(3, 3, 8, 12, dtype=torch.float64)
    torch.testing.assert_close(export_plain(net)(x), net(x))


@pytest.mark.parametrize(
    ("even", "odd"),
    [
        (OrthoConv2d(6, 4, 1), OrthoConv2d(6, 4, 1, bias=False)),
        (OrthoConv2d(6, 4, 1), OrthoConv2d(6, 4, 1)),
        (OrthoConv2d(6, 4, 1, bias=False), OrthoConv2d(6, 4, 1, bias=False)),
        (OrthoConv2d(6, 4, 3), OrthoConv2d(6, 4, 3, bias=False)),
        (OrthoConv2d(6, 4, 1), OrthoConv2d(6, 3, 1, bias=False)),
        (OrthoConv2d(6, 4, 1), Doubled(6, 4, 1, bias=False)),
        (nn.Conv2d(6, 4, 1), nn.Conv2d(6, 4, 1, bias=False)),
    ],
)
def test_one_product_gives_what_both_maps_give(even, odd):
    for conv in (even, odd):
        if conv.bias is not None:
            nn.init.normal_(conv.bias)
    both, x = EvenOddMap(even, odd).double(), torch.rand(3, 12, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(both(BatchLast()(x)), both(x))


@pytest.mark.parametrize("activation", [Shift(torch.full((3,), 0.7)), nn.Sigmoid(), nn.LeakyReLU(0.3)])
def test_the_norm_behind_an_activation_of_both_sides_is_within_its_bound(activation):
    both, x = EvenOddActivation(activation).double().eval(), torch.randn(200, 6, 2, 2, dtype=torch.float64)
    x[0] = 0
    start = Values(Affine(1.0, 0.0), Affine(0.0, 0.0))
    values = _through(both, start, Walk.over(both, (6, 2, 2)), torch.finfo(torch.float64).eps / 2)
    found = both(x).flatten(1).norm(dim=1)
    assert (found <= values.norm.at(x.flatten(1).norm(dim=1)) * (1 + 1e-9) + 1e-12).all()


def net_of(image_size, channels, parts=models.LIPSCHITZ, width=8):
    net = models.patchnet(5, channels, width, image_size=image_size, mirror=True, parts=parts)
    for parameter in net.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, std=0.1)
    return net.double()


@BOTH
@pytest.mark.parametrize(("image_size", "channels"), [((32, 32), 3), ((28, 28), 1), ((16, 48), 3), ((40, 90), 2)])
def test_a_mirrored_patchnet_does_not_tell_an_image_from_its_mirror_image(training, image_size, channels):
    net = net_of(image_size, channels).train(training)
    x = torch.rand(3, channels, *image_size, dtype=torch.float64)
    torch.testing.assert_close(net(x), net(x.flip(-1)))
    assert not torch.allclose(net(x), net(x.flip(-2)))


@pytest.mark.parametrize("layers", ["fast", "aol", "plain"])
def test_a_mirrored_patchnet_is_made_of_any_parts(layers):
    net, x = net_of(16, 3, models.parts_of(layers=layers)), torch.rand(2, 3, 16, 16, dtype=torch.float64)
    if layers != "plain":
        set_lipschitz(net, 3.0)
        assert get_lipschitz(net) == pytest.approx(3.0)
        before, bound = net.eval()(x), lipschitz_bound(net, (3, 16, 16))
        assert bound <= 3.0 * (1 + 1e-6)
        slopes = torch.autograd.functional.jacobian(lambda x: net(x[None])[0], x[0]).flatten(1)
        assert torch.linalg.matrix_norm(slopes, 2) <= bound
        set_lipschitz(net, 6.0)
        torch.testing.assert_close(net(x), 2 * before)
    torch.testing.assert_close(net(x), net(x.flip(-1)))


def test_it_takes_half_of_the_products_and_a_quarter_of_the_frames():
    frames = lambda net: sum(p.numel() for p in net.parameters() if p.ndim > 1)  # noqa: E731
    plain, both = models.patchnet(width=64), models.patchnet(width=64, mirror=True)
    assert frames(both) / frames(plain) == pytest.approx(0.5, abs=0.01)  # two matrices of a quarter each
    with pytest.raises(UserError, match="got 8, 0 and 31"):
        models.patchnet(width=8, image_size=31, mirror=True)
    with pytest.raises(UserError, match="multiple of 4, depth 0, and images of an even width, got 6, 0 and 32"):
        models.patchnet(width=6, mirror=True)


def test_the_even_part_is_the_first_half_of_the_channels():
    x = torch.arange(12.0).view(2, 6)
    assert torch.equal(Even()(x), x[:, :3])
