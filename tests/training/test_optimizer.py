"""Muon: what its direction is, and that an orthogonal layer learns the same whatever the size of its raw matrix."""

import math

import pytest
import torch
from torch import nn

from lipscale import UserError, certify, models, offset_cross_entropy, set_lipschitz
from lipscale.layers import OrthoConv2d, OrthoLinear
from lipscale.losses import margin, offset_of
from lipscale.settings import Settings, TrainingSettings
from lipscale.training import hardware
from lipscale.training.defaults import LEARNING_RATE, decided
from lipscale.training.optimizer import PlannedMuon, _polar, set_share


@pytest.mark.parametrize("shape", [(6, 6), (12, 5), (5, 12), (3, 8, 4)])
def test_the_direction_has_the_gradients_singular_vectors_and_singular_values_near_one(shape):
    gradient = torch.randn(shape, dtype=torch.float64)
    u, s, vh = torch.linalg.svd(gradient, full_matrices=False)
    in_their_basis = u.mT @ _polar(gradient) @ vh.mT
    values = in_their_basis.diagonal(dim1=-2, dim2=-1)
    assert (in_their_basis - torch.diag_embed(values)).abs().max() < 0.05  # bfloat16 has three digits
    well_conditioned = s / s.norm(dim=-1, keepdim=True) > 0.1
    assert ((values > 0.5) & (values < 1.4))[well_conditioned].all()
    # whatever its size; a power of two, which bfloat16 rounds alike
    torch.testing.assert_close(_polar(2.0**-20 * gradient), _polar(gradient), atol=1e-6, rtol=0)


def test_steps_are_relative_so_the_size_of_a_raw_matrix_does_not_matter():
    torch.manual_seed(0)
    inputs, labels = torch.randn(64, 3, 4, 4), torch.randint(2, (64,))
    weights = []
    for size in (1.0, 100.0):
        torch.manual_seed(1)
        net = nn.Sequential(OrthoConv2d(3, 4, 3), nn.Flatten(), OrthoLinear(64, 2)).train()
        with torch.no_grad():
            for p in net.parameters():
                if p.ndim > 1:
                    p.mul_(size)
        optimizer = PlannedMuon(net.parameters(), learning_rate=0.05, weight_decay=0.0)
        set_share(optimizer, 1.0)
        for _ in range(5):
            optimizer.zero_grad()
            offset_cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        weights.append([layer.weight.detach() for layer in (net[0], net[2])])
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, atol=0.01, rtol=0)


def test_a_parameter_without_a_gradient_stays():
    net = models.mlp(3, 4, 8, depth=1)
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = PlannedMuon(net.parameters(), learning_rate=1.0, weight_decay=0.0)
    set_share(optimizer, 1.0)
    optimizer.step()
    assert all(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))


class TestWhatIsLeftOpen:
    def test_our_convolutions_take_muon_and_the_others_adamw(self):
        settings = TrainingSettings(batch_size=256)
        patchnet, mlp = decided(settings, models.patchnet(3, 1, 4)), decided(settings, models.mlp(3, 4, 8))
        twin = decided(TrainingSettings(method="standard"), models.patchnet(3, 1, 4, parts=models.UNCONSTRAINED))
        assert [s.optimizer for s in (patchnet, mlp, twin)] == ["muon", "adamw", "adamw"]
        # half the batch size, a step that is shorter by the square root of it
        assert patchnet.learning_rate == pytest.approx(LEARNING_RATE["muon"] / 2)
        assert (patchnet.lipschitz, mlp.lipschitz) == (6.0, 1.0)

    def test_bfloat16_is_for_convolutions_in_single_precision_where_the_processor_has_it(self, monkeypatch):
        for native in (True, False):
            monkeypatch.setattr("lipscale.training.defaults.has_bfloat16", lambda device, native=native: native)
            nets = models.patchnet(3, 1, 4), models.patchnet(3, 1, 4).double(), models.mlp(3, 4, 8)
            chosen = [decided(TrainingSettings(), net).precision for net in nets]
            assert chosen == ["bfloat16" if native else "float32", "float32", "float32"]

    def test_emulated_bfloat16_is_named_with_what_it_costs(self, monkeypatch, caplog):
        monkeypatch.setattr(hardware, "has_bfloat16", lambda device: False)
        hardware.warn_of_emulation.cache_clear()  # it speaks once, and may have spoken
        decided(TrainingSettings(precision="bfloat16"), models.mlp(3, 4, 8))
        assert "emulates bfloat16: a product of matrices takes" in caplog.text

    def test_muon_is_refused_where_nothing_is_orthogonal(self):
        with pytest.raises(UserError, match="made for orthogonal layers, and method standard has none: use adamw"):
            Settings(method="standard", optimizer="muon")


def test_a_margin_is_the_offset_that_is_worth_its_radius():
    """R_cert = M / (sqrt(2) L), so a sample that has the whole offset as its margin is certified at the radius."""
    net = models.mlp(5, 4, 8)
    set_lipschitz(net, 3.0)
    certificate = certify(net, torch.randn(20, 4))
    radius = margin(certificate.logits) / (math.sqrt(2) * certificate.bound)
    assert (certificate.radius() >= radius * (1 - 1e-6)).all()
    offsets = torch.tensor([offset_of(float(r), certificate.bound) for r in radius], dtype=torch.float64)
    torch.testing.assert_close(offsets, margin(certificate.logits))
