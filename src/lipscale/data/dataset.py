"""What every reader returns, and the checks that every set must pass."""

import difflib
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil, isfinite, prod
from typing import Self

import torch
from torch import Tensor

from lipscale._random import random_stream
from lipscale.data.memory import rows_at_once
from lipscale.data.stored import Stored
from lipscale.errors import UserError

PIXELS = "pixels in [0, 1]"
DEVIATIONS = "standard deviations"
FEATURE_SPACE = "standard deviations, in feature space"  # of rows without named columns, such as a backbone's features
MOST_FEATURES = 100_000_000
MOST_CLASSES = 1000


@dataclass(frozen=True)
class Samples:
    """Inputs and labels. Images are (N, C, H, W), as bytes where the files have bytes; tables are (N, F)."""

    inputs: Tensor | Stored
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> Self:
        """The samples at these indices."""
        inputs = self.inputs.select(indices) if isinstance(self.inputs, Stored) else self.inputs[indices]
        return replace(self, inputs=inputs, labels=self.labels[indices])

    def join(self, other: Self) -> Self:
        """Both sets of samples, this one first."""
        stored = isinstance(self.inputs, Stored)
        inputs = self.inputs.join(other.inputs) if stored else torch.cat((self.inputs, other.inputs))  # type: ignore
        return replace(self, inputs=inputs, labels=torch.cat((self.labels, other.labels)))

    def cut(self, count: int) -> tuple[Self, Self]:
        """The first samples, and the rest."""
        first, rest = torch.arange(len(self)).tensor_split([count])
        return self.take(first), self.take(rest)

    def to(self, device: torch.device) -> Self:
        """The samples on a device; bytes stay bytes until a batch is drawn."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def chunks(self, *, most: int = 4096, itemsize: int | None = None) -> Iterable[Tensor]:
        """All inputs, in the order of the samples, some megabytes at a time where a number takes `itemsize` bytes."""
        size = prod(self.inputs.shape[1:]) * (itemsize or self.inputs.dtype.itemsize)
        return self.inputs.split(min(most, rows_at_once(size)))

    def digest(self) -> str:
        """A fingerprint of every input and label."""
        found = hashlib.sha256(repr((tuple(self.inputs.shape), str(self.inputs.dtype))).encode())
        found.update(self.labels.cpu().numpy().tobytes())
        for chunk in self.chunks():
            found.update(chunk.cpu().contiguous().numpy().data)
        return found.hexdigest()


@dataclass(frozen=True)
class Column:
    """A column of a table: numbers, dates (which are numbers of days), or one of some categories."""

    name: str
    categories: tuple[str, ...] = ()  # none: the column holds numbers
    dates: str = ""  # the form of its dates: iso, or as of strptime
    missing: bool = False  # whether numbers were missing in the training part: then one more input says so
    other: bool = False  # whether the last category stands for all that are not named
    long_tail: bool = False  # whether its numbers are squeezed by asinh, in units of their middle half

    @property
    def features(self) -> int:
        """How many inputs of a network it becomes."""
        return len(self.categories) or 1 + self.missing


@dataclass(frozen=True)
class Preprocessing:
    """What turns a raw input into a network input; a run stores it."""

    input_shape: tuple[int, ...]  # (C, H, W) or (F,)
    mean: tuple[float, ...]  # of each channel, in network units: what the network's input layer subtracts
    unit: str = PIXELS  # the unit in which radii are given
    column_mean: tuple[float, ...] = ()  # tables only: raw columns are standardised before the network
    column_std: tuple[float, ...] = ()
    columns: tuple[Column, ...] = ()  # tables with a header: their columns, in order
    column_range: tuple[tuple[float, float], ...] = ()  # the least and the largest number that training saw
    fit: str = "stretch"  # how a picture of another size is brought to input_shape

    def __post_init__(self) -> None:
        shape = self.input_shape
        if len(shape) not in (1, 3) or min(shape) < 1 or prod(shape) > MOST_FEATURES or len(self.mean) != shape[0]:
            raise UserError(f"expected an input shape (C, H, W) or (F,) and its C or F means, got {shape}")
        columns = (len(self.columns) or shape[0]) if len(shape) == 1 else 0
        features = sum(column.features for column in self.columns) or columns
        if not len(self.column_mean) == len(self.column_std) == columns or (columns and features != shape[0]):
            raise UserError(f"expected mean and std of {columns} columns that make {shape} features")
        if len(self.column_range) not in (0, columns):  # runs of earlier versions have none
            raise UserError(f"expected the ranges of {columns} columns, got {len(self.column_range)}")
        numbers = (*self.mean, *self.column_mean, *self.column_std, *chain(*self.column_range))
        if not all(map(isfinite, numbers)) or min(self.column_std, default=1) <= 0:
            raise UserError("expected finite means and positive stds")


@dataclass(frozen=True)
class Dataset:
    """A train part, a test part and what people call the classes; what no network can learn from is refused."""

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    augmentation: str = "none"  # what suits this set where the settings say "auto"
    columns: tuple[Column, ...] = ()  # tables with a header; only there a value may be missing (NaN)
    fit: str = "stretch"  # how pictures were brought to one size

    def __post_init__(self) -> None:
        if not 2 <= len(self.classes) <= MOST_CLASSES:
            raise UserError(f"{self.name} has {len(self.classes)} classes; give at least 2 and at most {MOST_CLASSES}")
        for part, samples in (("train", self.train), ("test", self.test)):
            check_samples(samples, f"{self.name} ({part} part)", len(self.classes), missing=bool(self.columns))
        shape = tuple(self.test.inputs.shape[1:])
        if shape != self.input_shape:
            raise UserError(f"{self.name}: training inputs have shape {self.input_shape}, test inputs {shape}")
        if len(self.train.labels.unique()) < 2:
            raise UserError(f"all training samples of {self.name} are of one class; a classifier needs at least 2")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W) or (F,)."""
        return tuple(self.train.inputs.shape[1:])


def hint(name: str, known: Sequence[str], otherwise: str = "") -> str:
    """The end of a message on an unknown name: the nearest known one, or else the first few."""
    if nearest := difflib.get_close_matches(name, known, n=1):
        return f"did you mean {nearest[0]!r}?"
    return otherwise or f"known: {listed(known)}"


def listed(names: Sequence[str]) -> str:
    """Names for a message; of many only the first."""
    return ", ".join(name[:40] for name in names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")


def check_samples(samples: Samples, where: str, classes: int, *, missing: bool = False) -> None:
    """Refuse what no network can learn from, naming the sample; `missing` lets NaN stand for a missing value."""
    labels, inputs = samples.labels, samples.inputs
    if len(inputs) != len(labels):
        raise UserError(f"{where} has {len(inputs)} inputs but {len(labels)} labels")
    if len(labels) == 0:
        raise UserError(f"{where} is empty")
    outside = ((labels < 0) | (labels >= classes)).nonzero()
    if len(outside):
        index = int(outside[0])
        raise UserError(f"{where}: label {int(labels[index])} of sample {index} is not in 0..{classes - 1}")
    if not missing and isinstance(inputs, Tensor) and not inputs.isfinite().all():
        index = int((~inputs.isfinite()).flatten(1).any(1).nonzero()[0])
        raise UserError(f"{where}: sample {index} holds NaN or infinite values; remove or repair it")


def as_input(inputs: Tensor | Stored) -> Tensor:
    """Network inputs in float32: bytes become numbers in [0, 1]; what is stored comes into memory."""
    inputs = inputs[:] if isinstance(inputs, Stored) else inputs
    return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs.float()


def stacked(parts: Iterable[Sequence[Tensor]]) -> list[Tensor]:
    """Tensors that come some rows at a time, each kind in one piece: as torch.cat, in memory without holes.

    Small tensors that stay, between large ones that go, would keep the memory of those from being used again.
    """
    whole: list[Tensor] = []
    done = 0
    for some in parts:
        end = done + len(some[0])
        if not whole or end > len(whole[0]):
            longer = [tensor.new_empty(2 * end, *tensor.shape[1:]) for tensor in some]
            for target, tensor in zip(longer, whole, strict=False):
                target[:done] = tensor[:done]
            whole = longer
        for target, tensor in zip(whole, some, strict=True):
            target[done:end] = tensor
        done = end
    return [tensor[:done].clone() for tensor in whole]


def stratified(labels: Tensor, count: int, *, seed: int, stream: str) -> tuple[Tensor, Tensor]:
    """Split sample indices into `count` of them and the rest, each class in proportion to its size.

    Shares are rounded so that they add up to `count`, largest remainders first. Both parts come sorted.
    """
    sizes = torch.bincount(labels.long())
    exact = sizes.double() * count / len(labels)
    quota = exact.floor().long()
    # ties broken by class number: the sort is stable
    order = (exact - quota).argsort(descending=True, stable=True)
    quota[order[: count - int(quota.sum())]] += 1
    shuffled = torch.randperm(len(labels), generator=random_stream(seed, stream))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    rank = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)  # within its class
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    chosen[by_class[rank < quota.repeat_interleave(sizes)]] = True
    return chosen.nonzero().squeeze(1), (~chosen).nonzero().squeeze(1)


def hold_out(samples: Samples, fraction: float, classes: Sequence[str]) -> tuple[Samples, Samples]:
    """The train and the test part of a set that comes in one piece; no seed of a run changes the test part."""
    count = max(1, round(fraction * len(samples)))
    test, train = stratified(samples.labels, count, seed=0, stream="test")
    if lost := set(samples.labels.tolist()) - set(samples.labels[train].tolist()):
        name = dict(enumerate(classes)).get(min(lost), str(min(lost)))
        raise UserError(f"class {name!r} has too few samples to be split into training and test; give more of it")
    return samples.take(train), samples.take(test)


def limit(dataset: Dataset, count: int, *, seed: int) -> Dataset:
    """The set with fewer training samples, each class in proportion; the test part stays whole.

    Args:
        dataset: The whole set.
        count: How many training samples, at least one a class.
        seed: Decides which.

    Returns:
        The smaller set.

    Example:
        >>> from lipscale.data import load_dataset
        >>> small = limit(load_dataset("digits"), 100, seed=0)
        >>> len(small.train), len(small.test)
        (100, 360)
    """
    least, most = len(dataset.classes), len(dataset.train)
    if not least <= count <= most:
        raise UserError(f"`limit`: expected {least} (one a class) to {most} samples of {dataset.name}, got {count}")
    chosen, _ = stratified(dataset.train.labels, count, seed=seed, stream="limit")
    return replace(dataset, train=dataset.train.take(chosen))


def split_conformal(dataset: Dataset, fraction: float, *, seed: int) -> tuple[Dataset, Samples]:
    """The set without a share of its training samples, and those; drawn at random, as exchangeable samples must be."""
    order = torch.randperm(len(dataset.train), generator=random_stream(seed, "conformal"))
    held_out, rest = (part.sort().values for part in order.tensor_split([round(fraction * len(order))]))
    if min(len(held_out), len(rest)) == 0:
        raise UserError(f"`conformal_fraction` {fraction:g} of {len(order)} training samples leaves a part empty")
    return replace(dataset, train=dataset.train.take(rest)), dataset.train.take(held_out)


def split_calibration(
    samples: Samples, fraction: float, *, seed: int, classes: Sequence[str]
) -> tuple[Samples, Samples]:
    """D_train and D_cal, stratified (90/10 in the paper), with at least one calibration sample a class.

    Args:
        samples: The training part of a set.
        fraction: The share of D_cal.
        seed: Decides which samples.
        classes: What people call the classes, for messages.

    Returns:
        D_train and D_cal.

    Example:
        >>> samples = Samples(torch.rand(100, 2), torch.arange(100) % 2)
        >>> train, calibration = split_calibration(samples, 0.1, seed=0, classes=("no", "yes"))
        >>> len(train), len(calibration)
        (90, 10)
    """
    count = round(fraction * len(samples))
    calibration, train = stratified(samples.labels, count, seed=seed, stream="calibration")
    for part, indices in (("calibration", calibration), ("training", train)):
        if missing := set(range(len(classes))) - set(samples.labels[indices].tolist()):
            has = int((samples.labels == min(missing)).sum())
            better = f"`calibration_fraction` {min(0.5, 1 / has + 0.01):.2f}" if has > 1 else "leave the class out"
            raise UserError(
                f"class {classes[min(missing)]!r} has no {part} sample at calibration_fraction {fraction}: it has "
                f"{has} training samples and needs about {max(2, ceil(1 / fraction))}; give more of them or {better}"
            )
    return samples.take(train), samples.take(calibration)


def require_turns(samples: Samples, classes: Sequence[str]) -> None:
    """Refuse a class of one sample: with cross-fitting no network that answers for it would have seen the class."""
    counts = samples.labels.bincount(minlength=len(classes)).tolist()
    if min(counts) < 2:
        name = classes[counts.index(min(counts))]
        problem = f"class {name!r} has {min(counts)} training sample{'' if min(counts) else 's'}"
        raise UserError(f"{problem} and no other could be a calibration sample; give at least 2 or leave the class out")


def channel_means(samples: Samples) -> tuple[float, ...]:
    """The mean of each channel of images, in network units: what the input layer subtracts."""
    # in one piece: small tensors that stay, between large ones that go, would leave holes all over the memory
    each = torch.empty(len(samples), samples.inputs.shape[1], dtype=torch.float64)
    for target, some in zip(each.split(64), samples.inputs.split(64), strict=True):
        target.copy_(as_input(some).double().flatten(2).mean(2))
    total = torch.zeros(samples.inputs.shape[1], dtype=torch.float64)
    for chunk in each.split(4096):
        total += chunk.sum(0)
    return tuple((total / len(samples)).tolist())
