"""Work in place reaches as far as memory is shared, which the layout decides: a bound must hold in each."""

import pytest
import torch
from torch import nn

import lipscale
from lipscale import UserError, lipschitz_bound
from lipscale.bounds.layouts import Layout, usual_layouts
from lipscale.bounds.walk import RULES
from lipscale.layers import (
    BatchLast,
    ConvexResidual,
    EvenOdd,
    HalfAbs,
    OrthoConv2d,
    OrthoLinear,
    Patches,
    Scale,
    Sum,
)


class Tripled(nn.Module):
    """x + 3 x, unless the copy is none: then 6 x."""

    def __init__(self, *, axes: tuple[int, ...] = (0, 2, 3, 1), really_copied: bool = False) -> None:
        super().__init__()
        self.axes, self.really_copied = axes, really_copied

    def forward(self, x):
        h = x.permute(self.axes)
        h = h * 1 if self.really_copied else h.contiguous()
        h *= 3
        return h + x.permute(self.axes)


class Transposed(nn.Module):
    def forward(self, x):
        return x.transpose(2, 3)


def slope(net, x, y):
    with torch.no_grad():
        return float((net(x.clone()) - net(y.clone())).norm() / (x - y).norm())


def laid(x, layout):
    """The same numbers, elsewhere."""
    return layout.within(torch.zeros(layout.extent, dtype=x.dtype)).copy_(x)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4), (1, 3, 4), (2, 1, 1)])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_layout_is_what_torch_makes_and_is_found_again(batch, shape):
    x = torch.rand(batch, *shape)
    row_major, *others = usual_layouts(x.shape)
    assert row_major == Layout.seen_in(x)
    for layout in (row_major, *others):
        assert Layout.seen_in(laid(x, layout)) == layout
        assert torch.equal(laid(x, layout), x)
    if len(shape) == 3:
        assert others[0] == Layout.seen_in(x.to(memory_format=torch.channels_last))


def test_gaps_and_copies_that_are_none_are_laid_out_as_they_were():
    x = torch.rand(3, 4, 6, 6)
    for seen in (x[:, :, 1:-1, 1:-1], x[:, :1].expand(3, 4, 6, 6), x[:, ::2], x.permute(0, 2, 3, 1)):
        layout = Layout.seen_in(seen)
        assert Layout.seen_in(layout.within(torch.zeros(layout.extent))) == layout


def test_a_copy_that_is_none_in_another_layout_is_refused():
    net = nn.Sequential(OrthoConv2d(4, 4, 1), Tripled()).eval()
    with pytest.raises(UserError, match="overwritten in place since"):
        lipschitz_bound(net, (4, 4, 4))


def test_a_copy_that_is_always_one_has_its_bound():
    net = nn.Sequential(Scale(1.0), Tripled(really_copied=True)).double().eval()
    bound = lipschitz_bound(net, (4, 3, 3))
    x, y = torch.rand(2, 2, 4, 3, 3, dtype=torch.float64)
    for layout in usual_layouts(x.shape):
        assert slope(net, laid(x, layout), laid(y, layout)) <= bound
    assert bound == pytest.approx(4.0)


def test_the_layout_that_a_module_meets_inside_of_a_network_counts():
    """Column-major memory is none of the usual ones, but what stands in front makes it."""
    swapped = (0, 1, 3, 2)
    with pytest.raises(UserError, match="overwritten in place since"):
        lipschitz_bound(nn.Sequential(Scale(1.0), Transposed(), Tripled(axes=swapped)).eval(), (4, 3, 3))


def test_branches_that_share_memory_in_one_layout_are_refused():
    in_place = nn.Sequential(Patches(2), nn.LeakyReLU(3.0, inplace=True))
    net = nn.Sequential(OrthoConv2d(4, 4, 1), Sum(in_place, nn.Sequential(Patches(2)))).eval()
    with pytest.raises(UserError, match="works inplace on what others in Sum read"):
        lipschitz_bound(net, (4, 2, 2))


def test_a_batch_of_one_shares_memory_where_three_do_not():
    residual = ConvexResidual(nn.Sequential(BatchLast(), nn.LeakyReLU(3.0, inplace=True)))
    with pytest.raises(UserError, match="works inplace"):
        lipschitz_bound(nn.Sequential(residual, nn.Flatten(), OrthoLinear(8, 2)).eval(), (2, 2, 2))


def test_radii_do_not_depend_on_the_memory_of_the_inputs(monkeypatch):
    class Copies(nn.Module):  # 6 x where the channels lie innermost, and nothing that torch.fx follows
        def forward(self, x):
            return Tripled()(x)

    monkeypatch.setitem(RULES, Copies, lambda module, bound: 4.0)  # true of row-major memory
    net = nn.Sequential(OrthoConv2d(4, 4, 1), Copies(), nn.Flatten(), OrthoLinear(64, 3)).eval()
    x = torch.rand(3, 4, 4, 4)
    radii = [lipscale.certify(net, laid(x, layout)).radius() for layout in usual_layouts(x.shape)]
    assert all(torch.equal(r, radii[0]) for r in radii)


def test_what_stands_behind_one_operation_of_several_modules_is_seen_in_its_real_layout():
    """The walk's own hooks must not make the mirrored stem take its other way."""
    in_place = nn.Sequential(nn.Flatten(), nn.LeakyReLU(3.0, inplace=True))
    net = nn.Sequential(BatchLast(), EvenOdd(2, OrthoConv2d(4, 4, 1), HalfAbs()), Sum(in_place, nn.Flatten())).eval()
    with pytest.raises(UserError, match="works inplace on what others in Sum read"):
        lipschitz_bound(net, (1, 4, 4))


def test_grey_images_with_their_one_channel_innermost_are_what_they_are():
    class Grey(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = OrthoConv2d(1, 1, 1, bias=False)

        def forward(self, x):
            h = self.conv(x).permute(0, 2, 3, 1)
            g = h.contiguous()
            g *= 3
            return g + h

    net = nn.Sequential(Grey(), nn.Flatten(), nn.Linear(16, 2)).eval()
    x = torch.rand(3, 4, 4, 1).permute(0, 3, 1, 2)
    assert x.is_contiguous()
    with pytest.raises(UserError, match="overwritten in place since"):
        lipscale.certify(net, x)


def test_what_a_part_copies_in_one_layout_alone_is_looked_at_in_the_others():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Sequential(Patches(2), nn.LeakyReLU(3.0, inplace=True))
            self.patches = Patches(2)

        def forward(self, x):
            return self.part(x) + self.patches(x)

    with pytest.raises(UserError, match="overwritten in place since"):
        lipschitz_bound(nn.Sequential(Scale(1.0), Parts()).eval(), (4, 2, 2))


def test_gaps_are_kept_when_a_module_is_looked_at():
    class Cropped(nn.Module):
        def forward(self, x):
            return x[:, :, 1:-1, 1:-1]

    class Flat(nn.Module):
        def forward(self, x):
            h = x.flatten(2)
            g = h.contiguous()
            g *= 3
            return g + h

    with pytest.raises(UserError, match="overwritten in place since"):
        lipschitz_bound(nn.Sequential(OrthoConv2d(2, 2, 1), Patches(2), Cropped(), Flat()).eval(), (2, 8, 8))


def test_a_network_may_refuse_other_layouts_and_be_called_by_name(monkeypatch):
    class RowMajor(nn.Module):
        def forward(self, x):
            assert x.is_contiguous()
            return 2 * x

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.LeakyReLU(3.0, inplace=True)

        def forward(self, x):
            return self.act(input=x) + x

    monkeypatch.setitem(RULES, RowMajor, lambda module, bound: 2.0)
    assert lipschitz_bound(nn.Sequential(RowMajor()).eval(), (2, 3, 3)) == 2.0
    monkeypatch.setitem(RULES, Named, lambda module, bound: 1 + bound(module.act))
    with pytest.raises(UserError, match="works inplace on what others in Named read"):
        lipschitz_bound(nn.Sequential(Scale(1.0), Named()).eval(), (2, 3, 3))
