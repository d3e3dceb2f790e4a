"""Long and rough training: raw frames may drift wherever they like, the weights in evaluation stay orthogonal."""

import pytest
import torch
from torch import nn

from conftest import centred
from lipscale.bounds import lipschitz_bound
from lipscale.layers import BatchCentering, GroupSort2, L2NormPool2d, OrthoConv2d, OrthoLinear, ScaledLayer
from lipscale.layers.evaluation import evaluation_mode
from lipscale.losses import offset_cross_entropy
from lipscale.settings import Settings
from lipscale.training.defaults import LEARNING_RATE
from lipscale.training.optimizer import new_optimizer, set_share


def small_net():
    return nn.Sequential(
        *(OrthoConv2d(2, 8, 3, bias=False), BatchCentering(8), GroupSort2()),
        *(OrthoConv2d(8, 12, 3, stride=2), GroupSort2()),
        *(OrthoConv2d(12, 6, 3), L2NormPool2d(), OrthoLinear(6, 3)),
    )


def train(steps, *, optimizer, times=1.0, decay=0.0):
    """Fit random labels, the roughest of tasks, at a multiple of the default learning rate that never comes down."""
    net = small_net().train()
    rate = times * LEARNING_RATE[optimizer]
    optimizer = new_optimizer(net, Settings(optimizer=optimizer, learning_rate=rate, weight_decay=decay))
    set_share(optimizer, 1.0)
    optimizer.train()
    inputs, labels = torch.rand(64, 2, 6, 6), torch.randint(3, (64,))
    for step in range(steps):
        batch = torch.randint(64, (16,))
        optimizer.zero_grad()
        loss = 4 * offset_cross_entropy(8 * net(inputs[batch]), labels[batch])
        loss.backward()
        assert loss.isfinite(), f"step {step}"
        optimizer.step()
    assert all(p.isfinite().all() for p in net.parameters())
    return net, optimizer, inputs


def assert_orthogonal_in_evaluation(net, optimizer, inputs):
    net.train()
    training = [m.weight.detach() for m in net if isinstance(m, ScaledLayer)]
    for exact, approximate in zip([m.weight for m in net.eval() if isinstance(m, ScaledLayer)], training, strict=True):
        torch.testing.assert_close(exact, approximate, atol=1e-3, rtol=0)  # one function in training and evaluation
    optimizer.eval()
    with evaluation_mode(net):
        centred(net, inputs)
        assert lipschitz_bound(net) == pytest.approx(1, abs=1e-5)
        for layer in net:
            if isinstance(layer, OrthoConv2d):
                # what it does to a 6 x 6 torus, frequency by frequency; a stride makes channels of its phases
                kernel = nn.functional.pad(layer.weight.double(), (0, 6 - layer.kernel_size[0]) * 2)
                symbols = torch.fft.fft2(nn.functional.pixel_unshuffle(kernel, layer.stride[0]))
                assert (torch.linalg.svdvals(symbols.permute(2, 3, 0, 1)) - 1).abs().max() < 1e-5
            elif isinstance(layer, OrthoLinear):
                assert (torch.linalg.svdvals(layer.weight) - 1).abs().max() < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("optimizer", LEARNING_RATE)
def test_ten_thousand_steps_at_the_default_learning_rate(optimizer):
    assert_orthogonal_in_evaluation(*train(10_000, optimizer=optimizer))


@pytest.mark.parametrize("optimizer", LEARNING_RATE)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_ten_times_the_learning_rate_gives_no_nan(optimizer, decay):
    assert_orthogonal_in_evaluation(*train(300, optimizer=optimizer, times=10, decay=decay))


@pytest.mark.parametrize("optimizer", LEARNING_RATE)
def test_an_absurd_learning_rate_gives_no_nan(optimizer):
    net, optimizer, inputs = train(200, optimizer=optimizer, times=100)
    optimizer.eval()
    with evaluation_mode(net):
        centred(net, inputs)
        assert lipschitz_bound(net) == pytest.approx(1, abs=1e-5)
        assert net(inputs).isfinite().all()
