"""What the peers' versions of a family get wrong, and ours does not: why we do not wrap them."""

import pytest
import torch
from torch import nn

from lipscale.layers.families import FAMILIES
from lipscale.layers.norms import conv_norm


def largest_symbol(kernel):
    """The norm of a convolution, from below: on the frequencies of a 32 x 32 torus."""
    symbols = torch.fft.fft2(kernel.detach().double(), s=(32, 32)).permute(2, 3, 0, 1)
    return float(torch.linalg.matrix_norm(symbols, ord=2).max())


def test_scaling_rows_before_the_exponential_breaks_orthogoniums_soc_and_not_ours():
    peer = pytest.importorskip("orthogonium.layers.conv.adaptiveSOC.fast_skew_ortho_conv")
    torch.manual_seed(1)
    raw = torch.randn(4, 4, 3, 3) * torch.logspace(-2, 1, 4).view(-1, 1, 1, 1)  # rows of different sizes
    theirs, ours = peer.FastSOC(4, 4, 3, padding=1, bias=False), FAMILIES["soc"].conv(4, 4, 3, bias=False).double()
    with torch.no_grad():
        theirs.parametrizations.weight.original.copy_(raw)
        ours.source.taps.copy_(raw.permute(2, 3, 0, 1))
    assert largest_symbol(theirs.weight) > 1.05
    delta = torch.zeros(4, 4, 13, 13, dtype=torch.float64)
    delta[range(4), range(4), 6, 6] = 1
    response = ours.eval()(delta).transpose(0, 1)  # (outputs, inputs, 13, 13)
    assert largest_symbol(response) <= 1 + 1e-12


@pytest.mark.skipif(torch.cuda.is_available(), reason="it fails where there is no GPU")
def test_orthogoniums_cayley_layer_wants_a_gpu():
    peer = pytest.importorskip("orthogonium.legacy.cayley_ortho_conv")
    with pytest.raises((AssertionError, RuntimeError)):
        peer.CayleyLinear(3, 3)
    assert FAMILIES["cayley"].linear(3, 3)(torch.rand(2, 3)).shape == (2, 3)


def test_torchs_spectral_norm_does_not_bound_a_convolution():
    torch.manual_seed(0)
    theirs = nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 4, 3, padding=1))
    for _ in range(50):
        theirs(torch.rand(1, 4, 8, 8))
    assert largest_symbol(theirs.eval().weight) > 1.5
    assert conv_norm(FAMILIES["spectral"].conv(4, 4, 3).eval().weight) <= 1 + 1e-6


def test_a_power_iteration_stays_below_the_norm_that_cpl_must_divide_by():
    """With the estimate of few iterations x - 2 / s^2 W^T relu(W x) expands; with the proven norm it cannot."""
    torch.manual_seed(0)
    block = FAMILIES["cpl"].linear(16, 16)
    w = block.source.kernel.taps.detach()[0, 0].double()
    x = torch.randn(16, dtype=torch.float64)
    for _ in range(2):
        x = w.mT @ (w @ x)
    estimate, norm = float((w @ x).norm() / x.norm()), float(torch.linalg.matrix_norm(w, ord=2))
    assert 2 * (norm / estimate) ** 2 - 1 > 1.05  # the Jacobian's norm where all of relu is open
    assert torch.linalg.matrix_norm(block.eval().weight.double(), ord=2) <= 1 + 1e-6
