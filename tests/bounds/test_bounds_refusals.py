"""What the bound refuses: where it cannot know, it gives no number."""

import deel.torchlip as torchlip
import pytest
import torch
from orthogonium.layers.normalization import BatchCentering2D, LayerCentering2D
from torch import nn

import lipscale
from lipscale import lipschitz_bound, register_rule
from lipscale.bounds.walk import RULES
from lipscale.errors import UserError
from lipscale.layers import ConvexResidual, OrthoLinear, Scale, Sum


class TestRefusals:
    def test_any_part_in_training_mode(self):
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).eval()
        net[1].train()
        with pytest.raises(UserError, match=r"\(1\): call net.eval\(\)"):
            lipschitz_bound(net)

    def test_hooks_and_replaced_methods(self):
        net = nn.Linear(2, 2).eval()
        handle = net.register_forward_hook(lambda m, i, o: 5 * o)
        with pytest.raises(UserError, match="forward hooks"):
            lipschitz_bound(net)
        handle.remove()
        net.forward = lambda x: 5 * x
        with pytest.raises(UserError, match="replaced forward"):
            lipschitz_bound(net)

    @pytest.mark.parametrize(
        ("module", "message"),
        [
            (Sum(nn.LeakyReLU(3.0, inplace=True)), "inplace"),
            (nn.LayerNorm(4, eps=0.0), "without an eps"),
            (nn.Softplus(threshold=0), "no Lipschitz rule"),
            (nn.LeakyReLU(float("nan")), "no finite bound"),
            (nn.Flatten(0), "join samples"),
            (nn.Unflatten(0, (2, -1)), "split samples"),
            (nn.CircularPad2d((-1, 1, 0, 0)), "negative padding"),
            (nn.Linear(2, 2, dtype=torch.complex64), "complex64"),
            (nn.AvgPool2d(2, ceil_mode=True), "border"),
            (torchlip.ScaledAvgPool2d(2, ceil_mode=True), "ceil_mode"),
            (torchlip.ScaledAvgPool2d(2, divisor_override=1), "divisor_override"),
            (torchlip.ScaledL2NormPool2d(2, ceil_mode=True), "ceil_mode"),
        ],
        ids=repr,
    )
    def test_settings_that_break_a_rule(self, module, message):
        with pytest.raises(UserError, match=message):
            lipschitz_bound(module.eval())

    def test_a_centering_that_broadcasts(self):
        with pytest.raises(UserError, match="broadcasts"):
            lipschitz_bound(BatchCentering2D(8).eval(), (1, 4, 4))

    @pytest.mark.parametrize(
        "centering",
        [torchlip.BatchCentering, torchlip.LayerCentering, BatchCentering2D, LayerCentering2D],
        ids=lambda kind: kind.__name__,
    )
    def test_a_certificate_sees_the_shape_on_which_a_centering_broadcasts(self, centering):
        """Once certified as 1-Lipschitz: a radius of 19.2 where 0.13 of it flipped the class."""
        x = torch.rand(5, 1, 4, 4)
        net = nn.Sequential(centering(64), nn.Flatten(), OrthoLinear(64 * 16, 2)).eval()
        with pytest.raises(UserError, match="broadcasts"):
            lipscale.certify(net, x)
        fitting = nn.Sequential(centering(1), nn.Flatten(), OrthoLinear(16, 2)).eval()
        assert lipscale.certify(fitting, x).bound == pytest.approx(1, rel=1e-5)

    @pytest.mark.parametrize("name", ["_conv_forward", "_call_impl", "_compiled_call_impl", "forward", "_slow_forward"])
    def test_methods_replaced_on_an_instance(self, name):
        conv = nn.Conv2d(2, 2, 3).eval()
        plain = getattr(conv, name, None) or conv.forward
        setattr(conv, name, lambda *args, **kwargs: 7 * plain(*args, **kwargs))
        for net in (conv, nn.Sequential(nn.ReLU(), conv).eval()):
            with pytest.raises(UserError, match="replaced|compiled"):
                lipschitz_bound(net, (2, 5, 5))

    @pytest.mark.parametrize("name", ["__call__", "_call_impl", "_wrapped_call_impl"])
    def test_a_sequence_that_runs_otherwise(self, name):
        loud = type("Loud", (nn.Sequential,), {name: lambda self, x: 10 * self[0](x)})(OrthoLinear(4, 4)).eval()
        for net in (loud, nn.Sequential(loud).eval()):
            with pytest.raises(UserError, match="Loud"):
                lipscale.certify(net, torch.rand(2, 4))

    def test_a_sequence_that_shows_other_parts_than_it_runs(self):
        class Shy(nn.Sequential):
            def __iter__(self):
                return iter(list(self._modules.values())[:1])

            def forward(self, x):
                for module in self._modules.values():
                    x = module(x)
                return x

        class Twice(nn.Sequential):
            def __iter__(self):
                return iter([*self._modules.values()] * 2) if self.asked else iter(self._modules.values())

        for kind in (Shy, Twice):
            with pytest.raises(UserError, match=f"no Lipschitz rule for {kind.__name__}"):
                lipschitz_bound(kind(nn.Linear(4, 4), Scale(10.0)).eval())

    def test_a_sequence_with_a_constructor_of_its_own_is_one(self):
        class Block(nn.Sequential):
            def __init__(self, width):
                super().__init__(Scale(3.0), Scale(width))

            def extra_repr(self):
                return "a block"

        assert lipschitz_bound(Block(2.0).eval()) == 6

    def test_a_scale_that_was_written_behind_torchs_back(self):
        net = nn.Sequential(OrthoLinear(4, 4), OrthoLinear(4, 4)).eval()
        x = torch.rand(3, 4)
        before = net(x)
        assert lipschitz_bound(net) == pytest.approx(1, rel=1e-5)
        net[1].sigma.data.fill_(7)
        torch.testing.assert_close(net(x).detach(), 7 * before.detach())
        assert lipschitz_bound(net) == pytest.approx(7, rel=1e-5)
        assert lipscale.certify(net, x).bound == pytest.approx(7, rel=1e-5)

    def test_weights_that_were_written_behind_torchs_back(self):
        net = nn.Sequential(OrthoLinear(4, 4)).eval()
        net(torch.rand(3, 4))
        for parameter in net.parameters():
            parameter.data.copy_(torch.randn_like(parameter))
        bound = lipschitz_bound(net)
        assert torch.linalg.matrix_norm(net[0].weight, 2) <= bound * (1 + 1e-6)
        fresh = nn.Sequential(OrthoLinear(4, 4)).eval()
        fresh.load_state_dict(net.state_dict())
        torch.testing.assert_close(net[0].weight, fresh[0].weight)

    def test_global_hooks(self):
        handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: 10 * o)
        try:
            with pytest.raises(UserError, match="global forward hooks"):
                lipschitz_bound(nn.Linear(2, 2).eval())
        finally:
            handle.remove()

    def test_a_replaced_call(self):
        class Louder(nn.Linear):
            def __call__(self, x):
                return 3 * super().__call__(x)

        register_rule(Louder, lambda layer, bound: 1.0)
        try:
            with pytest.raises(UserError, match="replaced call"):
                lipschitz_bound(Louder(2, 2).eval())
        finally:
            del RULES[Louder]

    def test_lists_of_one_number_are_read_as_torch_reads_them(self):
        listed, plain = nn.MaxPool2d([3], [2], dilation=[1]).eval(), nn.MaxPool2d(3, 2).eval()
        assert lipschitz_bound(listed) == lipschitz_bound(plain) == 2

    def test_subclasses_and_strangers(self):
        class Own(nn.Linear):
            def forward(self, x):
                return 2 * super().forward(x)

        with pytest.raises(UserError, match=r"no Lipschitz rule for Own: .*register_rule\(Own, lambda module, bound"):
            lipschitz_bound(Own(2, 2).eval())

    def test_a_module_that_runs_twice_counts_twice(self):
        layer = Scale(3.0)
        assert lipschitz_bound(nn.Sequential(layer, layer).eval()) == 9
        shared = OrthoLinear(2, 2)
        with pytest.raises(UserError, match="several places"):
            lipscale.set_lipschitz(nn.Sequential(shared, shared), 4.0)

    def test_broadcasting_is_no_way_around(self):
        for net, x in (
            (lipscale.models.mlp(3, 8, 4), torch.rand(2, 1)),
            (lipscale.models.convnet(3, 3, 4), torch.rand(2, 1, 8, 8)),
            (ConvexResidual(OrthoLinear(8, 1)), torch.rand(2, 8)),
        ):
            with pytest.raises(UserError):
                net.eval()(x)

    def test_a_shape_that_does_not_fit(self):
        with pytest.raises(UserError, match="does not take inputs of shape"):
            lipschitz_bound(nn.Linear(3, 2).eval(), (4,))

    def test_statistics_of_the_batch(self):
        with pytest.raises(UserError, match="running statistics"):
            lipschitz_bound(nn.BatchNorm2d(2, track_running_stats=False).eval())
