"""Every peer bug that we know of, as a regression test."""

import deel.torchlip as torchlip
import pytest
import torch
from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d
from orthogonium.layers.conv.SLL.sll_layer import SDPBasedLipschitzDense
from orthogonium.layers.linear import OrthoLinear as PeerLinear
from orthogonium.layers.linear import UnitNormLinear
from orthogonium.layers.normalization import BatchCentering2D
from torch import nn

from conftest import exact_norm, jacobian_norms, ready
from lipscale import lipschitz_bound
from lipscale.errors import UserError
from lipscale.layers import ConvexResidual, OrthoLinear


class TestPeersBugs:
    """What the published libraries shipped as 1-Lipschitz, and what it really is."""

    def test_a_head_with_unit_rows_only(self):
        head = UnitNormLinear(4, 10).eval()
        head.parametrizations.weight.original.data = torch.ones(10, 4) + 0.01 * torch.randn(10, 4)
        assert lipschitz_bound(head) == pytest.approx(
            float(torch.linalg.matrix_norm(head.weight.detach(), 2)), rel=1e-5
        )
        assert lipschitz_bound(head) > 1.8

    @pytest.mark.parametrize(("mode", "at_least"), [("reflect", 1.2), ("replicate", 1.2)])
    def test_padding_that_copies_pixels_expands(self, mode, at_least):
        conv = AdaptiveOrthoConv2d(4, 4, 3, padding=1, padding_mode=mode, bias=False)
        conv(torch.randn(1, 4, 8, 8))
        plain = nn.Conv2d(4, 4, 3, padding=1, padding_mode=mode, bias=False)
        plain.weight.data = conv.weight.detach()
        exact = exact_norm(ready(plain), (4, 6, 6))
        assert exact > at_least
        assert lipschitz_bound(conv.eval(), (4, 6, 6)) >= exact
        assert lipschitz_bound(conv.eval()) >= exact

    def test_circular_padding_at_stride_two_on_odd_sizes(self):
        conv = AdaptiveOrthoConv2d(4, 8, 3, stride=2, padding=1, bias=False)
        for _ in range(30):
            conv(torch.randn(1, 4, 8, 8))
        plain = nn.Conv2d(4, 8, 3, 2, 1, padding_mode="circular", bias=False)
        plain.weight.data = conv.weight.detach()
        odd, even = exact_norm(ready(plain), (4, 7, 7)), exact_norm(plain, (4, 8, 8))
        assert even == pytest.approx(1, abs=1e-3)
        assert odd > 1.3
        assert odd <= lipschitz_bound(conv.eval(), (4, 7, 7)) <= 2.01
        assert even <= lipschitz_bound(conv, (4, 8, 8)) <= 1.001
        assert lipschitz_bound(conv) >= 2  # an unknown size may be odd

    def test_a_spectral_layer_without_bjorck(self):
        layer = torchlip.SpectralLinear(64, 64, eps_bjorck=None)
        layer.parametrizations.weight.original.data = torch.randn(64, 64)
        layer.eval()  # its one power iteration has seen nothing of this
        assert lipschitz_bound(layer) == pytest.approx(float(torch.linalg.matrix_norm(layer.weight, 2)), rel=1e-5)
        assert lipschitz_bound(layer) > 1.2

    def test_torchlips_sequential_rescales_nothing_that_is_linear(self):
        net = torchlip.Sequential(
            torchlip.SpectralLinear(4, 4), torchlip.GroupSort2(), torchlip.SpectralLinear(4, 4), k_coef_lip=8
        )
        x = torch.randn(8, 4)
        net.train()(x)
        net.eval()
        assert lipschitz_bound(net) == pytest.approx(2, rel=1e-2)  # the user asked for 8
        assert jacobian_norms(net, x).max() <= lipschitz_bound(net)

    def test_an_unscaled_identity_skip(self):
        """sigma^D = 0.01 would be a false certificate: the block's constant is alpha sigma^2 + (1 - alpha)."""
        sigma = 0.01**0.5
        branch = nn.Sequential(OrthoLinear(4, 4), OrthoLinear(4, 4))
        block = ready(ConvexResidual(branch))
        for layer in branch:
            layer.sigma.fill_(sigma)
        assert lipschitz_bound(block) == pytest.approx(0.5 * 0.01 + 0.5)
        assert exact_norm(block, (4,)) > 0.45

    def test_orthogonium_weights_move_in_evaluation_within_the_bound(self):
        net = nn.Sequential(
            AdaptiveOrthoConv2d(3, 8, 3, padding=1), BatchCentering2D(8), nn.Flatten(), PeerLinear(8 * 16, 5)
        ).eval()
        bound = lipschitz_bound(net, (3, 4, 4))
        assert bound == pytest.approx(1, abs=1e-2)
        x = torch.randn(3, 3, 4, 4)
        for _ in range(5):
            assert jacobian_norms(net, x).max() <= bound

    def test_a_bjorck_iteration_with_another_step_is_not_taken_on_trust(self):
        layer = PeerLinear(4, 4).eval()
        layer.parametrizations.weight[1].beta = 0.9  # 1.9 s - 0.9 s^3 leaves [-1, 1]
        with pytest.raises(UserError, match="no rule"):
            lipschitz_bound(layer)

    def test_sll_is_not_taken_on_trust(self):
        """Published as 1-Lipschitz and measured at 1.8 with its epsilon: without a proof there is no rule."""
        with pytest.raises(UserError, match="no Lipschitz rule for SDPBasedLipschitz"):
            lipschitz_bound(SDPBasedLipschitzDense(8, 8, 8).eval())

    def test_autocast_and_bf16_are_refused(self):
        net = nn.Sequential(nn.Linear(4, 4)).eval()
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(UserError, match="autocast"):
            lipschitz_bound(net)
        with pytest.raises(UserError, match="bfloat16"):
            lipschitz_bound(net.bfloat16())
