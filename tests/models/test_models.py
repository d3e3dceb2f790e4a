"""The architectures: the paper's table row by row, and the twins."""

import pytest
import torch
from torch import nn

from conftest import centred
from lipscale import models
from lipscale.bounds.constant import scaled_depth
from lipscale.errors import UserError
from lipscale.layers import BatchCentering, ConvexResidual, GroupSort2, HalfAbs, OrthoConv2d, OrthoLinear


@pytest.mark.parametrize(("size", "channels"), [(32, 3), (64, 1)])
def test_resnet18_follows_the_papers_table(size, channels):
    x = torch.rand(2, channels, size, size)
    net = centred(models.resnet18(7, channels, 8, image_size=size), x)
    assert scaled_depth(net) == 18
    shapes = {}
    for name, module in net.named_children():
        x = module(x)
        shapes[name] = tuple(x.shape[1:])
    assert shapes["stem"] == (8, 32, 32)
    assert shapes["stage1"] == (8, 32, 32)
    assert shapes["stage2"] == (16, 16, 16)
    assert shapes["stage3"] == (32, 8, 8)
    assert shapes["stage4"] == (64, 4, 4)
    assert shapes["pool"] == (64,)
    assert shapes["head"] == (7,)


def test_every_block_is_the_papers():
    net = models.resnet18(10, 3, 8)
    blocks = [m for m in net.modules() if isinstance(m, ConvexResidual)]
    assert len(blocks) == 8
    for i, block in enumerate(blocks):
        assert [type(m) for m in block.branch] == [OrthoConv2d, BatchCentering, GroupSort2, OrthoConv2d]
        if i in (2, 4, 6):
            unshuffle, conv = block.skip
            assert isinstance(unshuffle, nn.PixelUnshuffle)
            assert conv.kernel_size == (1, 1)
        else:
            assert isinstance(block.skip, nn.Identity)


def test_the_full_width_has_the_papers_channels():
    net = models.resnet18()
    assert (net.head.in_features, net.head.out_features) == (512, 10)
    assert [type(m) for m in net.stem] == [OrthoConv2d, BatchCentering, GroupSort2]


@pytest.mark.parametrize("size", [28, 29, 8, 33])
def test_any_image_size_works(size):
    x = torch.rand(2, 1, size, size)
    assert centred(models.convnet(3, 1, 4), x)(x).shape == (2, 3)
    assert centred(models.resnet18(3, 1, 4), x)(x).shape == (2, 3)
    assert models.patchnet(3, 1, 4, image_size=size)(x).shape == (2, 3)


def test_patchnet_merges_patches_to_a_grid_of_two_and_takes_images_that_are_not_square():
    net = models.patchnet(7, 3, 8, image_size=(32, 64), depth=1)
    x = torch.rand(2, 3, 32, 64)
    shapes = {}
    for name, module in net.named_children():
        x = module(x)
        shapes[name] = tuple(x.shape[1:])
    assert shapes["stem"] == (8, 16, 32)
    assert shapes["merge1"] == (16, 8, 16)
    assert shapes["merge3"] == (32, 2, 4)
    assert shapes["dense"] == (32,)
    assert shapes["head"] == (7,)
    assert scaled_depth(net) == 9  # stem, three merges with a block each, dense, head
    large = models.patchnet(width=8, image_size=96)
    assert large.stem[0].size == 6  # a grid of 16 x 16 whatever the image
    # no projectors of 108 channels: the constrained network is as large as its twin, whose memory is what is checked
    twin = models.patchnet(width=8, image_size=96, parts=models.UNCONSTRAINED)
    count = lambda net: sum(p.numel() for p in net.parameters())  # noqa: E731
    assert count(large) == count(twin)
    with pytest.raises(UserError, match="side 3"):
        models.patchnet(image_size=3)


@pytest.mark.parametrize(
    "make",
    [
        lambda parts: models.resnet18(5, 3, 8, parts=parts),
        lambda parts: models.convnet(5, 3, 8, parts=parts),
        lambda parts: models.patchnet(5, 3, 8, image_size=16, depth=1, parts=parts),
        lambda parts: models.mlp(5, (3, 16, 16), 8, parts=parts),
    ],
)
def test_twins_have_the_same_topology_in_plain_parts(make):
    x = torch.rand(2, 3, 16, 16)
    constrained, twin = centred(make(models.LIPSCHITZ), x), make(models.UNCONSTRAINED)

    def shapes(net, kinds):
        found = [m for m in net.modules() if isinstance(m, kinds)]
        return [
            (m.in_channels, m.out_channels) if hasattr(m, "in_channels") else (m.in_features, m.out_features)
            for m in found
        ]

    plain = [m for m in twin.modules() if not list(m.children())]
    assert not any(isinstance(m, (OrthoConv2d, OrthoLinear, BatchCentering, GroupSort2, HalfAbs)) for m in plain)
    assert all(m.padding_mode == "zeros" for m in plain if isinstance(m, nn.Conv2d))
    assert shapes(constrained, (OrthoConv2d, OrthoLinear)) == shapes(twin, (nn.Conv2d, nn.Linear))
    count = lambda net, kind: sum(isinstance(m, kind) for m in net.modules())  # noqa: E731
    assert count(constrained, BatchCentering) == count(twin, nn.BatchNorm2d)
    assert count(constrained, (GroupSort2, HalfAbs)) == count(twin, nn.ReLU)
    assert constrained(x).shape == twin(x).shape == (2, 5)


def test_odd_widths_and_missing_layers_are_named():
    for make in (models.resnet18, models.convnet, models.patchnet, models.mlp):
        with pytest.raises(UserError, match="even width, got 7"):
            make(width=7)
    with pytest.raises(UserError, match="a number of hidden layers, got depth -1"):
        models.mlp(depth=-1)
