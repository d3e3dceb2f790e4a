"""Every family of layers: unit norms after rough training, sound bounds, exact projection, and what is refused."""

import itertools
import math
from typing import get_args

import pytest
import torch
from torch import nn

from conftest import centred
from lipscale import certify, export_plain, get_lipschitz, lipschitz_bound, models, set_lipschitz
from lipscale.certificates.slopes import steepest_direction
from lipscale.errors import UserError
from lipscale.layers import CircularConv2d, Exponential, OrthoConv2d, Potential, evaluation_mode
from lipscale.layers.families import FAMILIES
from lipscale.settings import LayersName, Settings
from lipscale.training.defaults import LEARNING_RATE
from lipscale.training.optimizer import new_optimizer, set_share

NAMES = list(FAMILIES)
RESIDUAL = ("sll", "cpl")
GRID = list(itertools.product((1, 2), (1, 3, 5), (6, 8, 9)))  # stride, kernel, side
QUICK = [(1, 3, 6), (2, 3, 9), (2, 1, 8)]


def roughly_trained(net, shape, *, steps=25, optimizer="adamw"):
    """Steps at ten times the learning rate on noise."""
    rate = 10 * LEARNING_RATE[optimizer]
    made = new_optimizer(net.train(), Settings(optimizer=optimizer, learning_rate=rate))
    set_share(made, 1.0)
    for _ in range(steps):
        made.zero_grad()
        y = net(torch.randn(4, *shape))
        ((y - torch.randn_like(y)) ** 2).sum().backward()
        made.step()
    return net


def jacobians(layer, shape, *, count=3):
    """Dense Jacobians in float64: of a linear layer they are all the same."""
    answers = export_plain(layer).double()
    for x in torch.randn(count, 1, *shape, dtype=torch.float64):
        jacobian = torch.autograd.functional.jacobian(answers, x)
        yield jacobian.reshape(-1, x.numel())


def assert_unit(name, stride, kernel_size, side, *, optimizer):
    torch.manual_seed(0)
    shape = (3, side, side)
    if stride > kernel_size and not FAMILIES[name].sees_patches:
        with pytest.raises(UserError):
            models.parts_of(layers=name).conv(3, 4, kernel_size, stride=stride)
        return
    layer = models.parts_of(layers=name).conv(3, 4, kernel_size, stride=stride)
    roughly_trained(layer, shape, optimizer=optimizer)
    with evaluation_mode(layer):
        layer(torch.zeros(1, *shape))
        bound = lipschitz_bound(layer, shape)
        norms = [float(torch.linalg.matrix_norm(j, ord=2)) for j in jacobians(layer, shape)]
    assert max(norms) <= min(1 + 1e-5, bound * (1 + 1e-9))
    assert bound <= 1 + 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_after_rough_steps_no_dense_jacobian_exceeds_the_bound_nor_that_one(name):
    for place in QUICK:
        assert_unit(name, *place, optimizer="adamw")


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_on_the_whole_grid(name, optimizer):
    for place in GRID:
        assert_unit(name, *place, optimizer=optimizer)


def test_the_settings_name_every_family():
    assert set(get_args(LayersName)) == {"fast", "reference", *FAMILIES}
    assert all(name == family.name for name, family in FAMILIES.items())


def small(name, *, model="convnet"):
    torch.manual_seed(1)
    parts = models.parts_of(layers=name)
    if model == "mlp":
        return models.mlp(5, 12, 8, depth=2, parts=parts), (12,)
    return models.convnet(5, 1, 4, parts=parts), (1, 8, 8)


def test_soc_refuses_another_number_of_channels():
    with pytest.raises(UserError, match="expected 2 channels, got"):
        FAMILIES["soc"].conv(2, 4, 3)(torch.rand(1, 3, 5, 5))


@pytest.mark.parametrize("model", ["convnet", "mlp"])
@pytest.mark.parametrize("name", NAMES)
def test_a_network_has_the_bound_that_is_set_and_scales_exactly(name, model):
    net, shape = small(name, model=model)
    x = torch.rand(6, *shape)
    roughly_trained(net, shape, steps=3)
    centred(net, x).eval()
    set_lipschitz(net, 0.5)
    before = net(x)
    set_lipschitz(net, 7.0)
    torch.testing.assert_close(net(x), 14 * before, rtol=1e-4, atol=1e-5)
    assert get_lipschitz(net) == pytest.approx(7, rel=1e-5)
    bound = lipschitz_bound(net, shape)
    slope = float(steepest_direction(export_plain(net).double(), x.double(), torch.Generator()).max())
    assert 0 < slope <= bound * (1 + 1e-9)
    assert bound <= 7 * 1.001


@pytest.mark.parametrize("name", NAMES)
def test_save_and_load_keep_every_bit_and_export_computes_the_same(name, tmp_path):
    net, shape = small(name)
    x = torch.rand(6, *shape)
    centred(net, x).eval()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    other, _ = small(name)
    other.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    assert torch.equal(other.eval()(x), net(x))
    assert net.state_dict().keys() == other.state_dict().keys()
    plain = export_plain(net)
    torch.testing.assert_close(plain(x), net(x), rtol=1e-4, atol=1e-5)
    assert lipschitz_bound(plain, shape) == pytest.approx(lipschitz_bound(net, shape), rel=1e-6)
    if name in ("cayley", "soc", "sll", "lipnext"):  # one of each kind of operator
        program = torch.export.export(plain, (x,))
        torch.testing.assert_close(program.module()(x), plain(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_forward_error_is_bounded(name):
    """What the proof allows is more than float32 was off, and in float64 it costs no radius."""
    net, shape = small(name)
    x = torch.rand(8, *shape)
    centred(net, x).eval()
    exact, answered = certify(net, x), certify(net, x, dtype=torch.float32)
    off = (answered.logits - exact.logits).norm(dim=1)
    assert (off <= answered.error.at(x.flatten(1).norm(dim=1)) + exact.error.at(exact.norms)).all()
    assert (exact.error.at(exact.norms) < 1e-7).all()


class TestRefusals:
    def test_a_stride_larger_than_the_kernel(self):
        with pytest.raises(UserError, match=r"layers aoc cannot make conv\(2, 4, 1, stride=2\).* is bcop"):
            models.parts_of(layers="aoc").conv(2, 4, 1, stride=2)

    @pytest.mark.parametrize("name", NAMES)
    def test_groups(self, name):
        with pytest.raises(UserError, match=rf"layers {name} cannot make conv\(4, 4, 3, groups=2"):
            models.parts_of(layers=name, padding="circular").conv(4, 4, 3, groups=2)

    @pytest.mark.parametrize("name", ["cayley", "lot", "bro"])
    def test_zero_padding_of_transforms(self, name):
        with pytest.raises(UserError, match=rf"layers {name} cannot make .* circular only; .* is aoc"):
            models.convnet(5, 1, 4, parts=models.parts_of(layers=name, padding="zeros"))

    @pytest.mark.parametrize("name", ["aoc", "bcop", "bro", "lipnext"])
    def test_too_few_channels(self, name):
        with pytest.raises(UserError, match=rf"layers {name} .* needs at least \d channels on one side; .* is aol"):
            models.parts_of(layers=name).conv(1, 1, 3)

    @pytest.mark.parametrize("name", ["soc", "sll", "cpl", "lipnext"])
    def test_even_kernels(self, name):
        with pytest.raises(UserError, match=rf"layers {name} .* an odd size; .* is aoc"):
            models.parts_of(layers=name).conv(4, 4, 2)

    @pytest.mark.parametrize("name", ["cayley", "lot", "bro"])
    def test_another_image_size(self, name):
        net, shape = small(name)
        net(torch.rand(2, *shape))
        with pytest.raises(UserError, match=rf"of layers {name} has a transform for images of 8 x 8, got 12 x 12"):
            net(torch.rand(2, 1, 12, 12))

    def test_a_size_that_is_open(self):
        net, _ = small("cayley")
        with pytest.raises(UserError, match="has seen no image yet"):
            lipschitz_bound(net.eval())

    def test_an_unknown_name(self):
        with pytest.raises(UserError, match="expected layers fast, .*spectral.*, got 'caylay'"):
            models.parts_of(layers="caylay")


class TestFormulas:
    """Each family's weight against its paper's formula, written out once more."""

    def test_cayley(self):
        (weight,) = [m for m in _conv("cayley", 3, 5, 3).modules() if isinstance(m, CircularConv2d)]
        weight(torch.rand(1, 3, 4, 6))
        taps = weight.source.taps.detach().double()  # (k, k, 5, 3)
        image = torch.zeros(4, 6, 5, 3, dtype=torch.float64)
        image[:3, :3] = taps
        symbols = torch.fft.fft2(image.roll((-1, -1), (0, 1)), dim=(0, 1))[1, 2]  # the middle tap is the pixel itself
        u, v = symbols[:3], symbols[3:]
        a, eye = u - u.mH + v.mH @ v, torch.eye(3, dtype=torch.complex128)
        tall = torch.cat((torch.linalg.solve(eye + a, eye - a), -2 * v @ torch.linalg.inv(eye + a)))
        torch.testing.assert_close(torch.view_as_complex(weight.source.exact_unit())[1, 2], tall)

    def test_the_circular_product_is_the_convolution_of_its_kernel(self):
        layer = _conv("bro", 4, 4, 3)
        x = torch.rand(2, 4, 5, 6)
        layer(x)
        symbols = torch.view_as_complex(layer.eval().weight)
        kernel = torch.fft.irfft2(symbols, s=(5, 6), dim=(0, 1))  # (5, 6, o, i)
        by_hand = sum(
            torch.einsum("oi,bihw->bohw", kernel[i, j], x.roll((i, j), (2, 3))) for i in range(5) for j in range(6)
        )
        torch.testing.assert_close(layer(x), by_hand + layer.bias.view(-1, 1, 1), rtol=1e-4, atol=1e-5)

    def test_soc_is_near_the_exponential_and_its_kernel_is_skew(self):
        layer = FAMILIES["soc"].linear(6, 6, bias=False).double()
        skew = layer.source.exact_unit()
        assert torch.equal(skew, -skew.mT)
        assert torch.linalg.matrix_norm(skew, ord=2) <= 1 + 1e-12
        matrix = layer(torch.eye(6, dtype=torch.float64)).mT
        torch.testing.assert_close(matrix, torch.matrix_exp(skew), atol=0.05, rtol=0)
        torch.testing.assert_close(matrix, torch.eye(6) + skew + skew @ skew / 2 + skew @ skew @ skew / 6)

    @pytest.mark.parametrize("powers", range(1, 13))
    def test_a_truncated_exponential_is_a_contraction_where_the_last_power_is_0_or_3_modulo_4(self, powers):
        t = torch.linspace(0, 1, 1001, dtype=torch.float64)
        series = sum((1j * t) ** k / math.factorial(k) for k in range(powers + 1))
        assert (float(series.abs().max()) <= 1 + 1e-12) == (powers % 4 in (0, 3))

    def test_aol(self):
        layer = FAMILIES["aol"].linear(5, 4, bias=False)
        with torch.no_grad():
            layer.source.kernel.taps.normal_()
        k = layer.source.kernel.taps.detach()[0, 0]
        d = (k.mT @ k).abs().sum(1)
        torch.testing.assert_close(layer.weight, k * d.rsqrt())

    def test_sll_is_the_papers_layer(self):
        """x - 2 W^T diag(t) relu(W x + b), 1 / t_i = sum_j |W W^T|_ij q_j / q_i."""
        block = FAMILIES["sll"].linear(4, 4).double()
        assert isinstance(block, Potential)
        source, x = block.source.kernel, torch.randn(7, 4, dtype=torch.float64)
        with torch.no_grad():
            source.log_q.normal_()
            block.bias.normal_()
        w, q = source.taps.detach()[0, 0], source.log_q.detach().exp()
        t = 1 / ((w @ w.mT).abs() * q / q[:, None]).sum(1)
        b = block.bias.detach() / t.sqrt()  # relu(t^1/2 (W x + b)) = t^1/2 relu(W x + b)
        by_hand = x - 2 * (torch.relu(x @ w.mT + b) * t) @ w
        torch.testing.assert_close(block(x), by_hand)

    def test_cpl_is_the_papers_layer_with_the_true_norm(self):
        block = FAMILIES["cpl"].linear(4, 4).double().eval()
        w, x = block.source.kernel.taps.detach()[0, 0], torch.randn(7, 4, dtype=torch.float64)
        by_hand = x - 2 / torch.linalg.matrix_norm(w, ord=2) ** 2 * torch.relu(x @ w.mT) @ w
        torch.testing.assert_close(block(x), by_hand, rtol=1e-8, atol=1e-10)

    def test_bro_is_a_reflection_at_half_the_rank(self):
        layer = FAMILIES["bro"].linear(6, 6, bias=False).double()
        w = layer.source.exact_unit()
        torch.testing.assert_close(w @ w, torch.eye(6, dtype=torch.float64), atol=1e-5, rtol=0)
        assert torch.linalg.eigvalsh(w).sign().tolist() == [-1] * 3 + [1] * 3

    def test_lot_starts_as_the_identity_and_ends_at_the_polar_factor(self):
        layer = FAMILIES["lot"].linear(4, 4, bias=False)
        assert layer.weight.abs().sum(1).tolist() == pytest.approx([1] * 4)
        with torch.no_grad():
            layer.source.kernel.taps.add_(torch.randn(1, 1, 4, 4) / 4)
        v = layer.source.kernel.taps.detach()[0, 0].double()
        values, vectors = torch.linalg.eigh(v.mT @ v)
        torch.testing.assert_close(layer.source.exact_unit(), v @ vectors @ torch.diag(values.rsqrt()) @ vectors.mT)
        torch.testing.assert_close(layer.weight, layer.eval().weight, atol=1e-2, rtol=0)

    def test_spectral_divides_a_convolution_by_the_operators_norm(self):
        layer = _conv("spectral", 3, 4, 3).eval()
        assert isinstance(layer, OrthoConv2d)
        with torch.no_grad():
            layer.source.taps.normal_()
        flat = torch.linalg.matrix_norm(layer.weight.flatten(1), ord=2)
        symbols = torch.fft.fft2(layer.weight, s=(64, 64)).permute(2, 3, 0, 1)
        assert 0.99 < torch.linalg.matrix_norm(symbols, ord=2).max() <= 1
        assert flat < 0.9  # what torch's spectral_norm would have made 1

    def test_soc_convolution_is_the_series_of_convolutions(self):
        layer = _conv("soc", 2, 4, 3)
        assert isinstance(layer, Exponential)
        x, skew = torch.rand(1, 2, 5, 5), layer.eval().weight
        x4 = nn.functional.pad(x, (0, 0, 0, 0, 0, 2))
        terms = [x4]
        for k in (1, 2, 3):
            terms.append(nn.functional.conv2d(terms[-1], skew, padding=1) / k)
        torch.testing.assert_close(layer(x), sum(terms)[:, :4])


def _conv(name, inputs, outputs, kernel_size):
    torch.manual_seed(0)
    return models.parts_of(layers=name).conv(inputs, outputs, kernel_size)
