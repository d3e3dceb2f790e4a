"""Memory with the batch innermost changes no number: values and gradients, layer by layer and of whole networks."""

import pytest
import torch

from lipscale import models
from lipscale.layers import BatchLast, EvenOdd, HalfAbs, OrthoConv2d, Patches, Scale
from lipscale.layers.layout import _Product, halves, is_batch_last, joined, product

batch_last = BatchLast()


def test_the_layout_is_another_order_in_memory_alone():
    x = torch.rand(3, 2, 4, 5)
    there = batch_last(x)
    assert is_batch_last(there)
    assert not is_batch_last(x)
    assert torch.equal(there, x)
    assert is_batch_last(BatchLast().eval()(x))
    row = batch_last(torch.rand(1, 2, 4, 5))
    assert row.shape == (1, 2, 4, 5)


def test_halves_and_joining_keep_it_and_so_do_their_gradients():
    x = batch_last(torch.rand(4, 6, 2, 3)).requires_grad_()
    first, second = halves(x)
    assert torch.equal(torch.cat((first, second), 1), x)
    again = joined((first, second))
    assert is_batch_last(again)
    again.square().sum().backward()
    assert is_batch_last(x.grad)
    torch.testing.assert_close(x.grad, 2 * x)


def test_doubles_stay_doubles_under_autocast():
    conv, x = OrthoConv2d(6, 8, 3).double().train(), batch_last(torch.rand(3, 6, 5, 4, dtype=torch.float64))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(conv(x), product(x, conv.weight, conv.scaled_bias()))
        assert conv(x).dtype is torch.float64


@pytest.mark.parametrize("kernel_size", [1, 2, 3, (1, 3), 5])
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_the_convolution(kernel_size, bias):
    conv = OrthoConv2d(6, 8, kernel_size, padding="same", bias=bias).double().train()
    if bias:
        torch.nn.init.normal_(conv.bias)
    x = torch.rand(3, 6, 5, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for inputs in (x, batch_last(x)):
        y = conv(inputs)
        assert is_batch_last(y) == (inputs is not x)
        results.append([y, *torch.autograd.grad(y.sin().sum(), [x, *conv.parameters()])])
    for ours, torchs in zip(*results, strict=True):
        torch.testing.assert_close(ours, torchs)


def test_what_is_no_product_stays_a_convolution():
    x = batch_last(torch.rand(3, 6, 4, 4))
    others = {"stride": 2}, {"padding": 0}, {"groups": 2}, {"padding_mode": "circular"}, {"dilation": 2, "padding": 2}
    for other in others:
        assert not OrthoConv2d(6, 6, 3, **other).is_product_on(x)
    conv = OrthoConv2d(6, 6, 3)
    assert conv.is_product_on(x)
    assert not conv.is_product_on(x.contiguous())


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("layer", [OrthoConv2d(3, 9, 3), EvenOdd(1, OrthoConv2d(3, 8, 3), HalfAbs())])
def test_other_numbers_of_channels_are_refused_and_mix_no_samples(layer, channels):
    with pytest.raises(RuntimeError):
        layer(batch_last(torch.rand(3, channels, 8, 8)))


def test_a_hook_sees_every_batch():
    net, seen = models.patchnet(5, 3, 8, image_size=16, mirror=True).eval(), []
    for module in net.modules():
        if isinstance(module, OrthoConv2d | HalfAbs):
            module.register_forward_hook(lambda module, *_: seen.append(module))
    counts = []
    for batch in (1, 4):
        net(torch.rand(batch, 3, 16, 16))
        counts.append(len(seen))
    # convolutions: the stem, and two of each merge; activations: of the stem, and of both sides of all else
    assert counts == [7 + 9, 2 * (7 + 9)]


def test_second_derivatives_of_a_product():
    x, matrix, bias = (torch.rand(*shape, dtype=torch.float64).requires_grad_() for shape in ((3, 5), (4, 3), (4,)))
    assert torch.autograd.gradgradcheck(_Product.apply, (x, matrix, bias))


def test_no_samples_are_no_answers_and_a_trace_is_ordinary_operations():
    net = models.patchnet(5, 3, 8, image_size=16, mirror=True).eval()
    assert net(torch.rand(0, 3, 16, 16)).shape == (0, 5)
    x = torch.rand(4, 3, 16, 16)
    traced = torch.jit.trace(net, torch.rand(4, 3, 16, 16))
    torch.testing.assert_close(traced(x), net(x))


def test_patches_are_the_same_patches():
    x = torch.rand(3, 5, 4, 6)
    assert torch.equal(Patches(2)(batch_last(x)), Patches(2)(x))


@pytest.mark.parametrize("image_size", [(32, 32), (28, 28), (16, 48)])
def test_a_network_learns_the_same_and_is_attacked_alike(image_size, monkeypatch):
    net = models.patchnet(5, 3, 8, image_size=image_size, mirror=True).double().train()
    biases = [parameter for parameter in net.parameters() if parameter.ndim == 1]
    for bias in biases:
        torch.nn.init.normal_(bias)
    x = torch.rand(4, 3, *image_size, dtype=torch.float64, requires_grad=True)
    results = []
    for layout in ("batch last", "as it comes"):
        if layout == "as it comes":
            monkeypatch.setattr(BatchLast, "forward", lambda self, x: x)
        learnt, attacked = net.train()(x), net.eval()(x)
        wanted = [x, *net.parameters()]
        results.append([learnt, *torch.autograd.grad(learnt.sin().sum(), wanted)])
        results[-1] += [attacked, *torch.autograd.grad(attacked.sin().sum(), [x, *biases])]
    for ours, torchs in zip(*results, strict=True):
        torch.testing.assert_close(ours, torchs)


def test_in_bfloat16_it_is_off_by_no_more_than_the_ordinary_layout(monkeypatch):
    net, x = models.patchnet(5, 3, 16, mirror=True).train(), torch.rand(16, 3, 32, 32)
    exact = net(x)

    def off():
        with torch.autocast("cpu", torch.bfloat16):
            return float((net(x) - exact).norm())

    ours = off()
    monkeypatch.setattr(BatchLast, "forward", lambda self, x: x)
    assert 0 < ours < 1.5 * off()


def test_a_part_that_was_added_to_the_stem_is_no_part_of_one_operation():
    net = models.patchnet(3, 1, 4, image_size=8, mirror=True).double().eval()
    net.stem.net.insert(2, Scale(0.01))
    net.eval()
    x = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(net(x), torch.cat([net(row[None]) for row in x]))
