"""Our convolutions with every argument of torch's: orthogonal by a dense SVD, and torch's own with that weight."""

import itertools

import pytest
import torch
from torch import nn

from conftest import dense
from lipscale import certify, export_plain, lipschitz_bound, set_lipschitz
from lipscale.layers import OrthoConv2d, OrthoConvTranspose2d, OrthoLinear

# channels, kernel, stride, dilation, groups
GRID = [
    *itertools.product([(4, 6), (6, 4)], [3, 4, (3, 2), (1, 4)], [1, 2], [1], [1, 2]),
    *itertools.product([(4, 4)], [2, 3], [1, 2, (2, 1)], [2, 3, (1, 2)], [1, 2]),
    *itertools.product([(6, 2)], [1, 2], [3], [1], [1, 2]),  # a stride that leaves pixels out
]


def after_noisy_steps(layer, *, steps=5):
    """In evaluation, in float64, after some steps along random directions as long as the weights."""
    with torch.no_grad():
        for _ in range(steps):
            for parameter in layer.source.parameters():
                parameter += 0.3 * parameter.abs().mean() * torch.randn_like(parameter)
    return layer.double().eval()


@pytest.mark.parametrize("case", GRID, ids=str)
def test_it_is_orthogonal_on_a_torus_and_never_expands_with_zeros(case):
    (inputs, outputs), kernel, stride, dilation, groups = case
    options = {"stride": stride, "dilation": dilation, "groups": groups, "bias": False}
    padding = "same" if stride == 1 else None
    layer = after_noisy_steps(OrthoConv2d(inputs, outputs, kernel, padding=padding, padding_mode="circular", **options))
    values = torch.linalg.svdvals(dense(layer, (inputs, 12, 12)))
    assert values.max() == pytest.approx(1.0, abs=1e-12)
    assert values.min() == pytest.approx(1.0, abs=1e-12)  # all of them: nothing is lost that could be kept
    zeros = OrthoConv2d(inputs, outputs, kernel, padding=3, **options).double().eval()
    zeros.load_state_dict(layer.state_dict())
    assert torch.linalg.matrix_norm(dense(zeros, (inputs, 5, 7)), ord=2) <= 1 + 1e-12


@pytest.mark.parametrize("case", [case for case in GRID if case[3] == 1 or case[2] == 1], ids=str)
def test_the_transpose_is_one(case):
    (inputs, outputs), kernel, stride, dilation, groups = case
    options = {"stride": stride, "dilation": dilation, "groups": groups, "bias": False}
    layer = after_noisy_steps(OrthoConvTranspose2d(outputs, inputs, kernel, **options))
    values = torch.linalg.svdvals(dense(layer, (outputs, 4, 5)))
    assert values.max() <= 1 + 1e-12
    conv = OrthoConv2d(inputs, outputs, kernel, padding=0, **options).double().eval()
    conv.load_state_dict(layer.state_dict())
    y = torch.randn(1, outputs, 4, 5, dtype=torch.float64)
    x = torch.randn_like(layer(y))
    torch.testing.assert_close((conv(x) * y).sum(), (x * layer(y)).sum())


@pytest.mark.parametrize("padding", [0, 2, (1, 3), "same", "valid", None])
def test_it_computes_what_torch_does_with_its_weight(padding):
    """Zeros and circular, even kernels, holes and groups."""
    for mode, kernel, dilation in itertools.product(("zeros", "circular"), (4, (2, 5)), (1, 2)):
        if mode == "circular" and padding in (2, (1, 3)):
            continue
        ours = OrthoConv2d(4, 6, kernel, 1, padding, dilation, 2, True, mode, dtype=torch.float64).eval()
        nn.init.normal_(ours.bias)
        theirs = nn.Conv2d(4, 6, kernel, 1, ours.padding, dilation, 2, True, mode, dtype=torch.float64)
        theirs.load_state_dict({"weight": ours.weight, "bias": ours.bias.detach()})
        x = torch.randn(2, 4, 12, 11, dtype=torch.float64)
        torch.testing.assert_close(ours(x), theirs(x))


def test_a_network_of_them_is_scaled_certified_and_exported():
    """Down with groups and holes, up again by the transpose, and a head."""
    net = nn.Sequential(
        *(OrthoConv2d(2, 8, 4, 2, 1), nn.ReLU(), OrthoConv2d(8, 8, 3, dilation=2, groups=2)),
        *(OrthoConvTranspose2d(8, 2, 2, 2), nn.Flatten(), OrthoLinear(2 * 8 * 8, 3)),
    )
    set_lipschitz(net, 5.0)
    net.eval()
    x = torch.rand(20, 2, 8, 8)
    bound = lipschitz_bound(net, input_shape=(2, 8, 8))
    assert bound == pytest.approx(5.0, rel=1e-4)
    slopes = (net(x[:-1]) - net(x[1:])).flatten(1).norm(dim=1) / (x[:-1] - x[1:]).flatten(1).norm(dim=1)
    assert slopes.max() <= bound
    plain = export_plain(net)
    torch.testing.assert_close(plain(x), net(x), atol=1e-5, rtol=1e-5)
    assert lipschitz_bound(plain, input_shape=(2, 8, 8)) == pytest.approx(bound, rel=1e-4)
    assert (certify(net, x).radius() >= 0).all()


def test_device_and_dtype_are_where_torch_has_them():
    layer = OrthoConv2d(3, 4, 3, 1, 1, 1, 1, True, "zeros", "cpu", torch.float64)
    assert layer(torch.zeros(1, 3, 5, 5, dtype=torch.float64)).dtype == torch.float64
    assert "dilation=(2, 2), groups=2" in repr(OrthoConv2d(4, 4, 3, dilation=2, groups=2))
