"""The plain network: same outputs, same bound, no parametrizations; torch.export and torch.compile take it."""

import deel.torchlip as torchlip
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from conftest import centred
from lipscale import export_plain, get_lipschitz, lipschitz_bound, models, set_lipschitz
from lipscale.errors import UserError
from lipscale.layers import BatchCentering, OrthoLinear, ScaledLayer, mirrored

NETWORKS = {
    "mlp": (lambda: models.mlp(5, (1, 8, 8), 16, mean=[0.3]), (1, 8, 8)),
    "convnet": (lambda: models.convnet(5, 1, 4, mean=[0.3]), (1, 9, 9)),
    "patchnet": (lambda: models.patchnet(5, 3, 4, image_size=16, depth=1, mean=[0.3] * 3), (3, 16, 16)),
    "even and odd": (lambda: models.patchnet(5, 1, 8, image_size=(16, 24), mirror=True, mean=[0.3]), (1, 16, 24)),
    "mirrored": (lambda: mirrored(models.patchnet(5, 1, 4, image_size=16)), (1, 16, 16)),
    "resnet18": (lambda: models.resnet18(5, 3, 4, mean=[0.3] * 3), (3, 16, 16)),
}


@pytest.fixture(params=NETWORKS)
def network(request):
    make, shape = NETWORKS[request.param]
    net, x = make(), torch.rand(4, *shape)
    for p in net.parameters():  # biases and blends start at zero; move them
        if p.requires_grad and p.ndim < 2:
            nn.init.normal_(p, std=0.3)
    set_lipschitz(net, 7.0)
    return centred(net, x), x


def test_the_plain_network_computes_the_same(network):
    net, x = network
    plain = export_plain(net)
    torch.testing.assert_close(plain(x), net(x), atol=1e-5, rtol=1e-5)
    assert lipschitz_bound(plain) == pytest.approx(lipschitz_bound(net), rel=1e-6)
    assert get_lipschitz(net) == pytest.approx(7.0, rel=1e-5)


@pytest.mark.parametrize("layers", ["fast", "reference"])
def test_circular_padding_is_exported_too(layers):
    x = torch.rand(2, 1, 10, 10)
    net = centred(models.convnet(5, 1, 4, parts=models.parts_of(layers=layers, padding="circular")), x)
    set_lipschitz(net, 7.0)
    plain = export_plain(net)
    torch.testing.assert_close(plain(x), net(x), atol=1e-5, rtol=1e-5)
    assert lipschitz_bound(net) == pytest.approx(7.0, rel=1e-5)
    # torch's own layer takes odd sizes too, on which it would expand: only for one size is its bound as good
    assert lipschitz_bound(plain, (1, 10, 10)) == pytest.approx(7.0, rel=1e-5)


def test_nothing_constrained_is_left_in_it(network):
    plain = export_plain(network[0])
    for module in plain.modules():
        assert not isinstance(module, ScaledLayer | BatchCentering)
        assert not parametrize.is_parametrized(module)


def test_it_shares_no_memory_with_the_original(network):
    net, x = network
    before = net(x).detach().clone()
    plain = export_plain(net)
    with torch.no_grad():
        for tensor in [*plain.parameters(), *plain.buffers()]:
            tensor.mul_(3)
    torch.testing.assert_close(net(x), before, rtol=0, atol=0)


def test_torch_export_takes_it(network):
    net, x = network
    plain = export_plain(net)
    program = torch.export.export(plain, (x,))
    torch.testing.assert_close(program.module()(x), plain(x), atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_torch_compile_takes_it_whole(network):
    net, x = network
    plain = export_plain(net)
    compiled = torch.compile(plain, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), plain(x), atol=1e-5, rtol=1e-5)


def test_training_mode_is_refused():
    with pytest.raises(UserError, match="evaluation"):
        export_plain(models.mlp(2, 4, 4).train())


def test_a_shift_behind_a_linear_layer_keeps_its_axis():
    net = centred(nn.Sequential(OrthoLinear(4, 4), BatchCentering(4)), torch.randn(3, 4))
    nn.init.normal_(net[1].bias)
    for x in (torch.randn(3, 4), torch.randn(3, 4, 4)):
        torch.testing.assert_close(export_plain(net)(x), net(x), atol=1e-6, rtol=1e-5)


def test_what_cannot_be_made_plain_is_named():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = OrthoLinear(2, 2)

    class Louder(OrthoLinear):
        def forward(self, x):
            return 3 * super().forward(x)

    for module in (Own(), Louder(2, 2)):
        with pytest.raises(UserError, match=f"cannot export {type(module).__name__}"):
            export_plain(nn.Sequential(module).eval())


def test_peers_linear_layers_become_plain():
    net = nn.Sequential(torchlip.SpectralLinear(4, 3))
    net.train()(torch.randn(2, 4))
    plain = export_plain(net.eval())
    assert type(plain[0]) is nn.Linear
    x = torch.randn(5, 4)
    torch.testing.assert_close(plain(x), net(x))


def test_weights_that_were_written_behind_torchs_back_are_exported():
    net = models.mlp(3, 4, 8).eval()
    x = torch.rand(2, 4)
    before = net(x).detach()
    net.head.sigma.data.fill_(7)  # its bias is zero
    torch.testing.assert_close(export_plain(net)(x).detach(), 7 * before)


@pytest.mark.parametrize("name", ["patchnet", "even and odd", "mirrored"])
def test_torch_export_takes_batches_of_any_size(name):
    make, shape = NETWORKS[name]
    plain = export_plain(make().eval())
    batch = {0: torch.export.Dim("batch")}
    exported = torch.export.export(plain, (torch.rand(3, *shape),), dynamic_shapes=(batch,)).module()
    for size in (1, 2, 5):
        x = torch.rand(size, *shape)
        torch.testing.assert_close(exported(x), plain(x))
