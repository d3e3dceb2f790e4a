"""Where an epoch's batches come from: samples in memory, or anybody's Dataset or DataLoader of (inputs, labels)."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sized
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from lipscale import _processes as processes
from lipscale._random import random_stream
from lipscale.data import Samples, as_input, split_calibration, stratified
from lipscale.data.batches import epoch_batches
from lipscale.errors import UserError

MEASURED_AT_ONCE = 512  # samples
Batch = tuple[Tensor, Tensor]


class Batches(ABC):
    """A set of samples as a training draws it."""

    @abstractmethod
    def __len__(self) -> int:
        """The batches of an epoch."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The samples."""

    @abstractmethod
    def epoch(self, *purpose: str | int, augmented: bool = True, only: slice = slice(None)) -> Iterator[Batch]:
        """All batches, or some, shuffled; the same purpose draws the same again, where that is in our hands."""

    @abstractmethod
    def in_order(self) -> Iterator[Batch]:
        """Every sample once, as it is, to measure on; each process gets its share."""

    @abstractmethod
    def glimpse(self) -> str:
        """A fingerprint of a few samples: whether processes see the same ones."""

    @abstractmethod
    def smallest(self, size: int) -> int:
        """The fewest samples of a batch where so many samples are drawn like these."""

    def labels(self) -> Tensor:
        """The labels of all samples."""
        return processes.gather(torch.cat([labels for _, labels in self.in_order()]))

    @abstractmethod
    def join(self, other: Any) -> "Batches":
        """D_train and D_cal together, for Phase II."""

    @abstractmethod
    def to(self, device: torch.device) -> "Batches":
        """The same batches, delivered to a device."""


@dataclass(frozen=True)
class SampleBatches(Batches):
    """Batches of samples in memory: the seed decides on every one of them."""

    samples: Samples
    batch_size: int
    augmentation: str = "none"
    seed: int = 0
    crop: int = 2
    cutout: int = 0
    jitter: float = 0.0

    def __len__(self) -> int:
        return -(-len(self.samples) // self.batch_size)

    @property
    def size(self) -> int:
        """The samples."""
        return len(self.samples)

    def epoch(self, *purpose: str | int, augmented: bool = True, only: slice = slice(None)) -> Iterator[Batch]:
        """Shuffled by (seed, purpose)."""
        how = {name: getattr(self, name) for name in ("augmentation", "crop", "cutout", "jitter") if augmented}
        return epoch_batches(self.samples, self.batch_size, **how, seed=self.seed, stream=purpose, only=only)

    def in_order(self) -> Iterator[Batch]:
        """A few hundred at a time."""
        own = processes.shard(torch.arange(len(self.samples), device=self.samples.labels.device))
        for chunk in own.split(MEASURED_AT_ONCE):
            yield as_input(self.samples.inputs[chunk]), self.samples.labels[chunk]

    def glimpse(self) -> str:
        """Of all labels, and of three inputs."""
        return _fingerprint(self.samples.labels, self.samples.inputs[_three(len(self.samples))])

    def smallest(self, size: int) -> int:
        """All are of one size, give or take one."""
        return size // -(-size // self.batch_size)

    def labels(self) -> Tensor:
        """Nothing need be read for them."""
        return self.samples.labels

    def join(self, other: "SampleBatches") -> "SampleBatches":
        """Both sets of samples, this one first."""
        return replace(self, samples=self.samples.join(other.samples))

    def to(self, device: torch.device) -> "SampleBatches":
        """The samples on a device."""
        return replace(self, samples=self.samples.to(device))


@dataclass(frozen=True)
class LoaderBatches(Batches):
    """What a DataLoader yields: its shuffling and its augmentation are its own; with a seed the order is ours."""

    loaders: tuple[DataLoader[Any], ...]
    device: torch.device | None = None
    seed: int | None = None  # of loaders that were made here

    def __len__(self) -> int:
        try:
            return sum(map(len, self.loaders))
        except TypeError:
            raise UserError("the data loader has no length, and a plan needs one: give it a __len__") from None

    @property
    def size(self) -> int:
        """The samples; where a loader's data set does not say, its batches times its batch size."""
        return sum(
            len(loader.dataset) if isinstance(loader.dataset, Sized) else len(loader) * (loader.batch_size or 1)
            for loader in self.loaders
        )

    def epoch(self, *purpose: str | int, augmented: bool = True, only: slice = slice(None)) -> Iterator[Batch]:
        """Each loader once; there is no other way to draw from it."""
        return islice(self._drawn(*purpose), only.start, only.stop, only.step)

    def in_order(self) -> Iterator[Batch]:
        """Likewise."""
        return (batch for batch in self._drawn("in order") if len(batch[1]))

    def glimpse(self) -> str:
        """Of three samples, where a data set can be asked for them."""
        sets: Any = [loader.dataset for loader in self.loaders if not isinstance(loader.dataset, IterableDataset)]
        samples = (data[int(i)] for data in sets for i in _three(len(data)))
        return _fingerprint(*(torch.as_tensor(part) for sample in samples for part in sample))

    def smallest(self, size: int) -> int:
        """What is left over at the end."""
        most = min(loader.batch_size or 1 for loader in self.loaders)
        dropped = all(loader.drop_last for loader in self.loaders)
        return most if dropped else size % most or most

    def _drawn(self, *purpose: str | int) -> Iterator[Batch]:
        """Each loader once, every batch checked."""
        if self.seed is not None:
            for loader in self.loaders:
                loader.generator.manual_seed(random_stream(self.seed, *purpose).initial_seed())
        count = 0
        for batch in chain(*self.loaders):
            count += 1
            inputs, labels = _checked(batch)
            yield processes.shard(inputs).to(self.device), processes.shard(labels).to(self.device)
        if count == 0:
            raise UserError("the data loader yields no batch: is its data set empty, or smaller than a dropped batch?")

    def join(self, other: "LoaderBatches") -> "LoaderBatches":
        """One shuffled loader over both data sets where that can be; else one loader after the other."""
        loaders = (*self.loaders, *other.loaders)
        if not all(map(_is_plain, loaders)):
            return replace(self, loaders=loaders, seed=None)
        joined = _like(loaders[0], ConcatDataset([loader.dataset for loader in loaders]))
        return replace(self, loaders=(joined,))

    def to(self, device: torch.device) -> "LoaderBatches":
        """The same loaders; batches move one by one."""
        return replace(self, device=device)


def batches_of(data: Any, *, batch_size: int, seed: int) -> Batches:
    """Batches of whatever a user has: batches, samples, a DataLoader or a Dataset."""
    if isinstance(data, Batches):
        return data
    _require_samples(data)
    if isinstance(data, Samples):
        return SampleBatches(data, min(batch_size, len(data)), seed=seed)
    if isinstance(data, DataLoader):
        if processes.count() > 1:  # each would shuffle by itself, and their shares would not make a batch
            raise UserError("processes that train together draw the same batches: give a Dataset, not a DataLoader")
        return LoaderBatches((data,))
    if not isinstance(data, Dataset) and not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise UserError(f"expected a Dataset or DataLoader of (inputs, labels), got {type(data).__name__}")
    shuffle = not isinstance(data, IterableDataset)
    loader = DataLoader(data, batch_size, shuffle=shuffle, generator=torch.Generator())
    return LoaderBatches((loader,), seed=seed)


def as_dataset(data: Any) -> Any:
    """A pair of tensors (inputs, labels) as a data set, and anything else as it is."""
    is_pair = isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)
    return TensorDataset(*data) if is_pair else data


def split_data(data: Any, fraction: float, *, seed: int) -> tuple[Any, Any]:
    """D_train and D_cal of whatever a user has; stratified where the labels are known without reading every sample."""
    _require_samples(data)
    if isinstance(data, Samples):
        classes = tuple(map(str, range(int(data.labels.max()) + 1)))
        return split_calibration(data, fraction, seed=seed, classes=classes)
    if isinstance(data, DataLoader):
        if not _is_plain(data):
            raise UserError("this data loader cannot be split: give a calibration set of its own")
        train_part, calibration_part = split_data(data.dataset, fraction, seed=seed)
        return _like(data, train_part), DataLoader(
            calibration_part, data.batch_size, num_workers=data.num_workers, collate_fn=data.collate_fn
        )
    if not isinstance(data, Sized) or isinstance(data, IterableDataset):
        raise UserError("a data set without a length or without an order cannot be split: give a calibration set")
    labels = _known_labels(data)
    if labels is None:
        labels = torch.zeros(len(data), dtype=torch.long)
    count = round(fraction * len(data))
    if not 0 < count < len(data):
        raise UserError(
            f"`calibration_fraction` {fraction} of {len(data)} samples leaves one part empty: give more data"
        )
    if int(labels.min()) < 0:
        raise UserError(f"expected labels 0, 1, 2, ..., got {int(labels.min())}")
    calibration, train = stratified(labels, count, seed=seed, stream="calibration")
    items: Any = data
    return Subset(items, train.tolist()), Subset(items, calibration.tolist())


def _three(size: int) -> Tensor:
    return torch.tensor([0, size // 2, size - 1])


def _fingerprint(*tensors: Tensor) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def samples_in(data: Any) -> int:
    """How many samples whatever a user has holds; 0 where it does not say."""
    if isinstance(data, Batches):
        return data.size
    data = data.dataset if isinstance(data, DataLoader) else data
    return len(data) if isinstance(data, Sized) else 0


def is_divisible(data: Any) -> bool:
    """Whether any samples of the data can be taken: not of a stream, and a loader's are its own."""
    if isinstance(data, Batches):
        return isinstance(data, SampleBatches)
    return isinstance(data, Sized) and not isinstance(data, DataLoader | IterableDataset)


def in_parts(data: Any, count: int, *, seed: int) -> list[Any]:
    """The data in so many parts of about one size, each class in proportion where the labels are known."""
    _require_samples(data)
    if isinstance(data, SampleBatches):
        return [replace(data, samples=part) for part in in_parts(data.samples, count, seed=seed)]
    if not is_divisible(data):
        raise UserError(f"`cross_fit` takes samples in any order, but got a {type(data).__name__}: give a Dataset")
    if len(data) < max(count, 2):
        raise UserError(f"{len(data)} samples cannot take turns in {count} parts: give more data")
    labels = data.labels if isinstance(data, Samples) else _known_labels(data)
    parts, left = [], torch.arange(len(data))
    known = torch.zeros(len(data), dtype=torch.long) if labels is None else labels.cpu()
    for number in range(count, 0, -1):
        part, rest = stratified(known[left], round(len(left) / number), seed=seed, stream=f"part {number}")
        parts.append(left[part])
        left = left[rest]
    items: Any = data
    return [data.take(part) if isinstance(data, Samples) else Subset(items, part.tolist()) for part in parts]


def _require_samples(data: Any) -> None:
    if isinstance(data, Sized) and not isinstance(data, DataLoader) and len(data) == 0:
        raise UserError("the data set is empty")


def _is_plain(loader: DataLoader[Any]) -> bool:
    """Whether a loader draws every sample of its data set once, in batches of one size: then another like it can."""
    sampler = loader.sampler
    if loader.batch_size is None or not isinstance(loader.dataset, Sized):
        return False
    whole = isinstance(sampler, RandomSampler) and not sampler.replacement and len(sampler) == len(loader.dataset)
    return whole or isinstance(sampler, SequentialSampler)


def _like(loader: DataLoader[Any], dataset: Any) -> DataLoader[Any]:
    """A loader of other data that loads as this one does."""
    return DataLoader(
        dataset,
        loader.batch_size,
        shuffle=isinstance(loader.sampler, RandomSampler),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        generator=loader.generator,
    )


def _known_labels(data: Any) -> Tensor | None:
    """The labels of a TensorDataset, or those that a data set calls `targets`, as torchvision's do."""
    tensors, targets = getattr(data, "tensors", None), getattr(data, "targets", None)
    known = tensors[-1] if tensors else targets
    try:
        labels = torch.as_tensor(known)
    except (TypeError, ValueError, RuntimeError):
        return None
    is_one_each = labels.ndim == 1 and len(labels) == len(data) and not labels.is_floating_point()
    return labels.long() if is_one_each else None


def _checked(batch: Any) -> Batch:
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
        kind = (
            f"{type(batch).__name__} of {len(batch)}"
            if isinstance(batch, tuple | list | dict)
            else type(batch).__name__
        )
        raise UserError(f"expected batches that are pairs of tensors (inputs, labels), got a {kind}")
    inputs, labels = batch
    if not inputs.is_floating_point():
        raise UserError(f"expected inputs of floating point numbers, got {inputs.dtype}: divide bytes by 255, for one")
    if labels.ndim != 1 or labels.is_floating_point() or len(labels) != len(inputs):
        raise UserError(
            f"expected labels (B,) of whole numbers for inputs {tuple(inputs.shape)}, "
            f"got {labels.dtype} {tuple(labels.shape)}"
        )
    return inputs, labels.long()
