"""The model of docs/SCALE.md: what it counts is what the network has, computes and sends."""

from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from benchmarks.scale import Cluster, count

from lipscale import _processes, models
from lipscale.losses import offset_cross_entropy

CONV = [(64, 64)] * 4 + [(128, 128)] * 3 + [(256, 256)] * 3 + [(512, 512)] * 3  # stride 1
STRIDED = [(64, 128), (128, 256), (256, 512)]
LAYERS = (64, 64, 64, 128, 128, 256, 256, 512, 512)  # centred: the stem, and one in each of eight blocks


@pytest.fixture(scope="module")
def paper():
    return count(models.resnet18())


def test_parameters_and_bytes_are_those_of_the_papers_resnet18(paper):
    """By hand: a matrix and four projectors a 3 x 3 kernel, one fewer each way at stride 2; a matrix for 1 x 1."""
    plain = sum(i * o + 4 * o * o // 2 for i, o in [(3, 64), *CONV])
    strided = sum(4 * i * o + 2 * i * i // 2 for i, o in STRIDED)
    skips = sum(4 * i * o for i, o in STRIDED)
    biases = sum(LAYERS) + sum(2 * c for c in (64, 128, 256, 512)) + 8  # centering, second convolutions, blends
    head = 512 * 10 + 10
    assert paper.parameters == plain + strided + skips + biases + head
    assert paper.channels == LAYERS
    assert paper.gradient_bytes == 4 * (paper.parameters + 2)
    kernels = 9 * sum(i * o for i, o in [(3, 64), *CONV, *STRIDED]) + skips + 512 * 10
    assert paper.kernels == kernels


def test_an_image_costs_what_the_layers_of_a_resnet18_cost(paper):
    """Twice the products of each convolution on its grid, and again for both gradients; the first needs one alone."""
    forward = 2 * 9 * (3 * 64 * 32**2 + 4 * 64**2 * 32**2)
    for channels, side in ((128, 16), (256, 8), (512, 4)):
        forward += 2 * side**2 * (9 * (channels // 2) * channels + 3 * 9 * channels**2 + 4 * (channels // 2) * channels)
    forward += 2 * 512 * 10
    stem = 2 * 9 * 3 * 64 * 32**2
    assert paper.image == 3 * forward - stem


def test_a_step_sends_what_the_model_says(monkeypatch):
    """The real step of two processes, but for the wire."""
    sent = []

    def gathered(parts, tensor, **_):
        """Two processes with the same share."""
        sent.append(tensor.nbytes)
        for part in parts:
            part.copy_(tensor)
        return Mock()

    monkeypatch.setattr(_processes, "count", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, *_, **__: sent.append(tensor.nbytes))
    monkeypatch.setattr(dist, "all_gather", gathered)
    net = models.resnet18(width=8)
    expected = count(models.resnet18(width=8))
    sent.clear()
    loss = offset_cross_entropy(net(torch.rand(4, 3, 32, 32)), torch.arange(4))
    _processes.backward(loss, 4.0, net.parameters())
    assert sorted(sent) == sorted([*expected.centering_bytes, expected.gradient_bytes])


def test_more_gpus_share_the_images_and_not_the_kernels(paper):
    cluster = Cluster()
    one, eight = (cluster.seconds(paper, gpus, 256) for gpus in (1, 8))
    assert eight["images"] == pytest.approx(one["images"] / 8)
    assert eight["weights"] == one["weights"]
    assert one["gradient"] == one["centering"] == 0
    assert cluster.seconds(paper, 64, 256, spread=True)["optimizer"] == one["optimizer"] / 64
