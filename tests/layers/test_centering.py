"""Centering: training means, running means, estimated ones, and means that nobody has set."""

import copy
from functools import partial

import deel.torchlip as torchlip
import pytest
import torch
import torch.nn.functional as F

from conftest import centred
from lipscale import export_plain, set_lipschitz
from lipscale._files import load_tensors, save_tensors
from lipscale.errors import UserError
from lipscale.layers import (
    BatchCentering,
    GroupSort2,
    L2NormPool2d,
    OrthoConv2d,
    batch_means,
    estimate_means,
    evaluation_mode,
)
from lipscale.layers.centering import _Centre
from lipscale.models import LIPSCHITZ, UNCONSTRAINED, convnet, mlp, resnet18


def test_centering_in_training_equals_torchlips():
    x = torch.randn(6, 3, 4, 4)
    ours, theirs = BatchCentering(3).train(), torchlip.BatchCentering(3).train()
    torch.testing.assert_close(ours(x), theirs(x))


def test_estimated_means_are_the_training_means_at_every_depth_and_survive_a_change_of_scale():
    net = torch.nn.Sequential(
        OrthoConv2d(2, 4, 3), BatchCentering(4), GroupSort2(), OrthoConv2d(4, 4, 3), BatchCentering(4)
    )
    batches = [torch.randn(8, 2, 6, 6) + 1 for _ in range(3)]
    estimate_means(net.eval(), batches)
    seen = []
    for x in batches:
        y = net[0](x)
        seen.append(y.mean((0, 2, 3)))
    torch.testing.assert_close(net[1].mean, torch.stack(seen).mean(0))
    one = batches[0]
    estimate_means(net, [one])  # one batch: evaluation must then do exactly what training did
    centred = net(one).mean((0, 2, 3))
    torch.testing.assert_close(centred, torch.zeros(4), atol=1e-6, rtol=0)


def test_centering_in_evaluation_moves_nothing():
    layer = centred(BatchCentering(3), torch.randn(4, 3, 2, 2))
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    layer(torch.randn(4, 3, 2, 2) + 5)
    assert all(torch.equal(before[k], v) for k, v in layer.state_dict().items())


def deep():
    """Two centering layers, the second behind a first that shifts what it sees."""
    conv, norm = partial(OrthoConv2d, bias=False), BatchCentering
    return torch.nn.Sequential(conv(2, 4, 3), norm(4), GroupSort2(), conv(4, 4, 3), norm(4), L2NormPool2d())


class TestTheRunningMean:
    def test_it_is_an_average_at_first_and_then_forgets_as_batch_normalisation_does(self):
        layer, oracle = BatchCentering(3).double().train(), None
        for count in range(1, 30):
            x = torch.randn(6, 3, 4, 4, dtype=torch.float64) + count
            layer(x)
            weight = max(1 / count, 0.1)  # torch's momentum
            mean = x.mean((0, 2, 3))
            oracle = mean if oracle is None else (1 - weight) * oracle + weight * mean
            torch.testing.assert_close(layer.mean, oracle)
            assert layer.num_batches_tracked == count

    def test_it_equals_torchs_once_both_know_it(self):
        ours, theirs = BatchCentering(3).train(), torch.nn.BatchNorm2d(3).train()
        for _ in range(200):
            x = torch.randn(6, 3, 4, 4) + 2
            ours(x)
            theirs(x)
        torch.testing.assert_close(ours.mean, theirs.running_mean, atol=1e-5, rtol=0)

    def test_it_is_in_unit_scale_so_that_another_l_leaves_it_right(self):
        """The same batches at another L each, and at one: the same mean, and evaluation that scales with L."""
        net, other = deep(), deep()
        other.load_state_dict(net.state_dict())
        batches = [torch.randn(16, 2, 6, 6) + 1 for _ in range(5)]
        for x, constant in zip(batches, (0.01, 3.0, 100.0, 0.5, 7.0), strict=True):
            set_lipschitz(net, constant)
            for some in (net, other):
                some.train()(x)
        for ours, theirs in ((net[1], other[1]), (net[4], other[4])):
            torch.testing.assert_close(ours.mean, theirs.mean, atol=1e-6, rtol=1e-4)
        set_lipschitz(net, 4.0)
        x = torch.randn(3, 2, 6, 6)
        torch.testing.assert_close(net.eval()(x), 4 * other.eval()(x), atol=1e-5, rtol=1e-4)

    @pytest.mark.parametrize("constant", [1.0, 6.0])
    def test_evaluation_agrees_with_training_after_any_plain_training(self, digits, constant):
        """No call but net.eval(): the logits of a large batch are within 5 % of those in training.

        The learning rate comes down, as in any training that ends: a running mean lags behind weights that still move.
        """
        net, inputs, labels = convnet(10, 1, 8), digits.train.inputs, digits.train.labels
        set_lipschitz(net, constant)
        optimizer = torch.optim.Adam(net.parameters(), 5e-3)
        rates = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.03, total_iters=5 * 12)
        for _ in range(5):
            for batch in torch.randperm(len(inputs)).split(128):
                optimizer.zero_grad()
                F.cross_entropy(net(inputs[batch]), labels[batch]).backward()
                optimizer.step()
                rates.step()
        with torch.no_grad():
            evaluated = net.eval()(inputs)
            kept = {k: v.clone() for k, v in net.state_dict().items()}
            trained = net.train()(inputs)
        assert (evaluated - trained).norm() < 0.05 * trained.norm()
        fresh = convnet(10, 1, 8).eval()
        fresh.load_state_dict(kept)
        with torch.no_grad():
            assert torch.equal(fresh(inputs), evaluated)

    def test_it_survives_saving_and_loading(self, tmp_path):
        net, x = deep(), torch.randn(8, 2, 6, 6)
        for _ in range(3):
            net.train()(x)
        save_tensors(tmp_path / "net", net.state_dict(), {})
        again = deep().eval()
        again.load_state_dict(load_tensors(tmp_path / "net")[0])
        assert again[1].num_batches_tracked == 3
        assert torch.equal(again(x), net.eval()(x))
        for some in (net, again):
            some.train()(x + 1)  # and goes on from there
        assert torch.equal(again[4].mean, net[4].mean)

    def test_a_bfloat16_batch_is_tracked_in_full_precision(self):
        layer = BatchCentering(3).train()
        layer(torch.randn(4, 3, 2, 2).bfloat16())
        assert layer.mean.dtype == torch.float32


class TestMeansThatNobodyHasSet:
    def test_are_named_with_the_way_out(self):
        x = torch.rand(2, 1, 8, 8)
        for net in (convnet(3, 1, 4), resnet18(3, 1, 4), BatchCentering(1)):
            for use in (lambda net: net(x), lambda net: net.double()(x.double())):
                with pytest.raises(UserError, match=r"no mean yet: train the network first.*lipscale\.estimate_means"):
                    use(net.eval())
            with pytest.raises(UserError, match="estimate_means"):
                export_plain(net.float().eval())
            with pytest.raises(UserError, match="estimate_means"), evaluation_mode(net):
                net(x)
            estimate_means(net.eval(), [x])
            assert net(x).isfinite().all()
            export_plain(net)

    def test_a_twin_and_an_mlp_have_none_to_set(self):
        x = torch.rand(2, 1, 8, 8)
        for net in (mlp(3, (1, 8, 8), 4), convnet(3, 1, 4, parts=UNCONSTRAINED)):
            assert net.eval()(x).isfinite().all()

    def test_no_batch_sets_nothing(self):
        net = deep().eval()
        estimate_means(net, [])
        with pytest.raises(UserError, match="estimate_means"):
            net(torch.rand(2, 2, 6, 6))


class TestEstimatedMeans:
    def test_are_exact_at_every_depth_and_at_every_l(self):
        """The mean of each layer is the plain average over the batches, as training's forward pass sees them."""
        batches = [torch.randn(n, 2, 6, 6, dtype=torch.float64) * n + n for n in (4, 7, 5)]
        found = []
        for constant in (1.0, 9.0):
            net = deep().double()
            for parameter, seed in zip(net.parameters(), range(100), strict=False):
                torch.manual_seed(seed)
                torch.nn.init.normal_(parameter)  # biases among them
            set_lipschitz(net, constant)
            net.train()(100 + batches[0])  # what training has left is replaced
            expected, hooks = {1: [], 4: []}, []
            for place, seen in expected.items():
                hook = lambda m, inputs, seen=seen: seen.append(inputs[0].mean((0, 2, 3)) / m.scale)  # noqa: E731
                hooks.append(net[place].register_forward_pre_hook(hook))
            estimate_means(net.eval(), iter(batches))
            for place, seen in expected.items():
                assert len(seen) == 3
                torch.testing.assert_close(net[place].mean, torch.stack(seen).mean(0), rtol=1e-12, atol=1e-12)
            # the second layer saw what the first made of each batch by the batch's own mean, as in training
            for hook in hooks:
                hook.remove()
            centred_batches = [net[:4].train()(x) for x in batches]
            torch.testing.assert_close(
                net[4].scale * net[4].mean, torch.stack([y.mean((0, 2, 3)) for y in centred_batches]).mean(0),
                rtol=1e-9, atol=1e-9,
            )  # fmt: skip
            found.append(net.state_dict()["4.mean"])
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)  # in unit scale; sigma is a float32's root

    def test_only_the_means_change_and_the_mode_stays(self):
        net = deep().eval()
        before = {k: v.clone() for k, v in net.state_dict().items()}
        estimate_means(net, [torch.rand(4, 2, 6, 6)])
        changed = {k for k, v in net.state_dict().items() if not torch.equal(before[k], v)}
        assert changed == {"1.mean", "4.mean", "1.num_batches_tracked", "4.num_batches_tracked"}
        assert not any(module.training for module in net.modules())
        assert all(module._collected is None for module in (net[1], net[4]))

    @pytest.mark.parametrize("parts", [LIPSCHITZ, UNCONSTRAINED], ids=["constrained", "twin"])
    def test_a_network_in_training_is_put_into_evaluation_meanwhile(self, parts):
        net, batches = convnet(3, 1, 4, parts=parts), [torch.rand(4, 1, 8, 8) for _ in range(3)]
        for x in batches:
            net.train()(x)
        other = copy.deepcopy(net).eval()
        net.conv2.eval()  # frozen by its owner
        modes = [module.training for module in net.modules()]
        estimate_means(net, batches)
        estimate_means(other, batches)
        assert [module.training for module in net.modules()] == modes
        found = net.state_dict()
        assert all(torch.equal(value, found[name]) for name, value in other.state_dict().items())

    def test_batches_with_labels_are_named(self):
        net = deep().eval()
        with pytest.raises(UserError, match="batches of network inputs, without labels, got a tuple"):
            estimate_means(net, [(torch.rand(4, 2, 6, 6), torch.zeros(4))])
        assert all(module._collected is None for module in (net[1], net[4]))

    def test_within_batch_means_evaluation_does_what_training_does(self):
        net, x = deep().double(), torch.randn(6, 2, 6, 6, dtype=torch.float64)
        expected = net.train()(x).detach()
        with batch_means(net.eval()):
            torch.testing.assert_close(net(x), expected, atol=1e-6, rtol=1e-6)
        with pytest.raises(ZeroDivisionError), batch_means(net):
            raise ZeroDivisionError
        assert net[1]._collected is None


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 2), (3, 3, 2, 2)])
def test_the_handwritten_gradient_of_centering(shape):
    x, shift = torch.randn(shape, dtype=torch.float64, requires_grad=True), torch.randn(3, dtype=torch.float64)
    shift.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, s: _Centre.apply(x, s)[0], (x, shift))
    y, mean = _Centre.apply(x, shift)
    assert not mean.requires_grad  # the running mean is no part of the graph
    plain = x - x.mean([0, *range(2, x.ndim)]).view(-1, *[1] * (x.ndim - 2)) + shift.view(-1, *[1] * (x.ndim - 2))
    torch.testing.assert_close(y, plain)
    weight = torch.randn_like(y)
    for ours, theirs in zip(
        torch.autograd.grad((y * weight).sum(), (x, shift)),
        torch.autograd.grad((plain * weight).sum(), (x, shift)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
