"""Work in place reaches as far as memory is shared, which the layout decides: a bound must hold in each."""

import pytest
import torch
from torch import nn

import lipscale
from lipscale import UserError, lipschitz_bound
from lipscale.bounds.layouts import Layout, usual_layouts
from lipscale.bounds.walk import RULES
from lipscale.layers import BatchLast, ConvexResidual, OrthoConv2d, OrthoLinear, Patches, Scale, Sum


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


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4)])
def test_a_layout_keeps_the_numbers_and_is_found_again(shape):
    x = torch.rand(3, *shape)
    for layout in usual_layouts(shape):
        assert torch.equal(layout.of(x), x)
        assert Layout.seen_in(layout.of(x)) == layout


def test_a_copy_that_is_none_in_another_layout_is_refused():
    net = nn.Sequential(OrthoConv2d(4, 4, 1), Tripled()).eval()
    with pytest.raises(UserError, match="overwritten in place since"):
        lipschitz_bound(net, (4, 4, 4))


def test_a_copy_that_is_always_one_has_its_bound():
    net = nn.Sequential(Scale(1.0), Tripled(really_copied=True)).double().eval()
    bound = lipschitz_bound(net, (4, 3, 3))
    x, y = torch.rand(2, 2, 4, 3, 3, dtype=torch.float64)
    for layout in usual_layouts((4, 3, 3)):
        assert slope(net, layout.of(x), layout.of(y)) <= bound
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
    radii = [lipscale.certify(net, layout.of(x)).radius() for layout in usual_layouts((4, 4, 4))]
    assert all(torch.equal(r, radii[0]) for r in radii)
