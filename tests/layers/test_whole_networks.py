"""Evaluation mode, residual blocks and input layers, and networks under torch's own tools."""

import copy

import pytest
import torch
from test_centering import deep

from conftest import centred
from lipscale.errors import UserError
from lipscale.layers import (
    ConvexResidual,
    OrthoConv2d,
    OrthoLinear,
    PadToMultiple,
    Standardise,
    evaluation_mode,
)
from lipscale.layers.families import FAMILIES
from lipscale.layers.reference import PeerKernel
from lipscale.models import convnet, mlp, parts_of, resnet18


class TestEvaluationMode:
    def test_weights_written_through_data_in_evaluation_are_noticed(self):
        """Version counters miss `.data`, so plain evaluation keeps its weights; on entering they are computed anew."""
        for layer, x in ((OrthoLinear(4, 3), torch.randn(2, 4)), (OrthoConv2d(2, 4, 3), torch.randn(2, 2, 5, 5))):
            net = torch.nn.Sequential(layer).eval()
            before = net(x).detach()  # fills the cache
            raw = layer.source.matrix
            raw.data.copy_(torch.randn_like(raw))
            with evaluation_mode(net):
                after = net(x)
            assert not torch.equal(after, before)
            fresh = copy.deepcopy(net)
            fresh[0].drop_cache()
            assert torch.equal(after, fresh(x))

    def test_what_is_written_within_is_noticed_by_the_training_that_follows(self):
        net, x = torch.nn.Sequential(OrthoLinear(4, 3)).train(), torch.randn(2, 4)
        with evaluation_mode(net):
            net(x)
            net[0].source.matrix.data.copy_(torch.randn(net[0].source.matrix.shape))
        trained = net(x).detach()
        torch.testing.assert_close(net.eval()(x), trained, atol=1e-5, rtol=0)  # no cache outlives a stay in training

    def test_it_gives_every_module_its_mode_back_also_after_an_error(self):
        net = deep().train()
        net[3].eval()
        before = [module.training for module in net.modules()]
        with pytest.raises(ZeroDivisionError), evaluation_mode(net) as within:
            assert within is net
            assert not any(module.training for module in net.modules())
            assert not torch.is_grad_enabled()
            raise ZeroDivisionError
        assert [module.training for module in net.modules()] == before
        assert torch.is_grad_enabled()


def test_the_residual_is_a_convex_blend_with_a_scaled_skip():
    branch = OrthoLinear(4, 4, bias=False)
    block = ConvexResidual(branch).double().eval()
    block.sigma.fill_(0.5)
    block.blend.data.fill_(0.7)
    x = torch.randn(3, 4, dtype=torch.float64)
    alpha = torch.sigmoid(torch.tensor(0.7, dtype=torch.float64))
    torch.testing.assert_close(block(x), alpha * branch(x) + (1 - alpha) * 0.5 * x)


def test_input_layers():
    x = torch.rand(2, 3, 5, 6)
    torch.testing.assert_close(Standardise([0.1, 0.2, 0.3])(x)[:, 1], x[:, 1] - 0.2)
    torch.testing.assert_close(Standardise([0.0] * 3, [1.0, 2.0, 4.0])(x)[:, 2], x[:, 2] / 4)
    padded = PadToMultiple(4)(x)
    assert padded.shape == (2, 3, 8, 8)
    torch.testing.assert_close(padded.norm(), x.norm())
    assert PadToMultiple(1)(x) is x


def test_impossible_convolutions_are_named():
    with pytest.raises(UserError, match="leave 2 inputs, too few for 3 orthogonal outputs"):
        OrthoConv2d(2, 3, 1, stride=2)
    with pytest.raises(UserError, match="at least 2 channels"):
        OrthoConv2d(1, 1, 3, source=PeerKernel)
    with pytest.raises(UserError, match="3 equal groups"):
        OrthoConv2d(8, 9, 3, groups=3)
    with pytest.raises(UserError, match="PeerKernel makes square kernels alone"):
        OrthoConv2d(4, 4, (3, 1), source=PeerKernel)
    with pytest.raises(UserError, match="at stride 1 'same'"):
        OrthoConv2d(4, 4, 3, stride=2, padding="same")
    with pytest.raises(UserError, match="more outputs than inputs"):
        OrthoConv2d(4, 4, 3, padding=2, padding_mode="circular")


def test_torch_func_and_channels_last_see_the_same_network():
    x = torch.randn(2, 2, 8, 8, dtype=torch.float64)
    net = centred(resnet18(3, 2, 4).double(), x)
    torch.testing.assert_close(net(x.contiguous(memory_format=torch.channels_last)), net(x))
    ordinary = torch.autograd.functional.jacobian(lambda v: net(v[None])[0], x[0])
    torch.testing.assert_close(torch.func.jacrev(lambda v: net(v[None])[0])(x[0]), ordinary)


@pytest.mark.parametrize("layers", ["fast", *FAMILIES])
def test_parameters_are_contiguous_as_the_savers_of_other_libraries_ask(layers):
    """Whatever the shapes: Gram-Schmidt leaves square and tall matrices column by column."""
    parts = parts_of(layers=layers)
    for net in (mlp(3, 8, 8, depth=2, parts=parts), convnet(3, 3, 4, parts=parts)):
        assert all(tensor.is_contiguous() for tensor in net.state_dict().values())
