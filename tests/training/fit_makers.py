"""Three blobs in every form that `fit` takes, small networks, and a quick fit, for its tests."""

import dataclasses
from collections import Counter

import torch
from torch.utils.data import (
    Dataset,
    IterableDataset,
    TensorDataset,
)

from lipscale import fit, models

SIZES = (60, 40, 20)  # of the three classes


def blobs(sizes=SIZES, *, seed=0):
    """Rows (N, 4) around three centres, in any order; the last number of a row is its own, to tell it by."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=rng)]
    centres = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]])
    rows = centres[labels] + torch.randn(len(labels), 3, generator=rng)
    return torch.cat((rows, 1e-3 * torch.arange(len(labels)).unsqueeze(1)), 1), labels


def names(inputs):
    """Which rows these are."""
    return (1e3 * inputs[:, 3]).round().long().tolist()


DATA = TensorDataset(*blobs())
HELD_OUT = TensorDataset(*blobs((15, 10, 5), seed=1))


def network(kind="mlp", seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return models.mlp(3, 4, 8) if kind == "mlp" else models.convnet(10, 1, 4)


def quick(net, train, calibration=None, **options):
    """A short fit; few samples are split, not cross-fitted, where nothing else is said."""
    short = {"epochs": 2, "phase2_epochs": 1, "progress": False, "cross_fit": False, "calibration_fraction": 0.1}
    return fit(net, train, calibration, **short | options)


def timeless(history):
    return [dataclasses.replace(epoch, seconds=0.0) for epoch in history]


class Seen:
    """Notes which rows come by in training, epoch by epoch."""

    def __init__(self):
        self.epochs = [Counter()]
        self.batches = [[]]

    def note(self, module, inputs):
        if module.training:
            self.epochs[-1].update(names(inputs[0]))
            self.batches[-1].append(names(inputs[0]))

    def next(self, epoch=None):
        self.epochs.append(Counter())
        self.batches.append([])


def watched(train, calibration=None, **options):
    """The rows that each epoch trained on, and the fit."""
    net, seen = network(), Seen()
    net.register_forward_pre_hook(seen.note)
    result = quick(net, train, calibration, on_epoch=seen.next, **options)
    assert not seen.epochs.pop()
    return result, seen


class Targets(Dataset):
    """A data set as torchvision's are: pairs of a tensor and a number, and `targets` as a list."""

    def __init__(self):
        self.inputs, labels = blobs()
        self.targets = labels.tolist()

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Stream(IterableDataset):
    """A data set that is only read from front to back."""

    def __init__(self, data, *, length=True):
        self.data = data
        if length:
            Stream.__len__ = lambda self: len(self.data)
        elif hasattr(Stream, "__len__"):
            del Stream.__len__

    def __iter__(self):
        return (self.data[i] for i in range(len(self.data)))


def kind_of(data):
    return type(data).__name__
