"""Real data sets by name, and users' own arrays by path.

A new set is one small file with a function from a folder to a Dataset, and one line in READERS.
"""

import difflib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lipscale.data import arrays, cifar, digits, idx
from lipscale.data.dataset import (
    DEVIATIONS,
    PIXELS,
    Dataset,
    Preprocessing,
    Samples,
    as_input,
    channel_means,
    limit,
    split_calibration,
    stratified,
)
from lipscale.errors import UserError

__all__ = [
    "DEVIATIONS",
    "PIXELS",
    "READERS",
    "Dataset",
    "Preprocessing",
    "Samples",
    "as_input",
    "find_folder",
    "limit",
    "load_dataset",
    "prepare",
    "split_calibration",
    "standardise",
    "stratified",
]

ENVIRONMENT = "LIPSCALE_DATA"
SYSTEM_FOLDERS = ("/usr/share/datasets", "~/.local/share/lipscale", "data")


@dataclass(frozen=True)
class Reader:
    """How to read one named set and how to come by it."""

    read: Callable[[Path], Dataset]
    about: str
    folder: str = ""  # its usual name below a data folder; empty for an embedded set
    files: tuple[str, ...] = ()  # what must be in it, plain or gzipped
    get: str = ""  # what to tell people who do not have it


IDX_LAYOUT = "the four idx files (train-images-idx3-ubyte, ..., plain or .gz)"
READERS = {
    "digits": Reader(digits.read, "1,797 handwritten digits, 8x8, 10 classes; embedded"),
    "mnist": Reader(
        idx.read_mnist,
        "70,000 handwritten digits, 28x28, 10 classes",
        "mnist",
        idx.FILES,
        f"put {IDX_LAYOUT} into DIR/mnist and pass --data-dir DIR",
    ),
    "fashion-mnist": Reader(
        idx.read_fashion_mnist,
        "70,000 pictures of clothes, 28x28, 10 classes",
        "fashion-mnist",
        idx.FILES,
        f"'apt-get install dataset-fashion-mnist' on Debian, or put {IDX_LAYOUT} into DIR/fashion-mnist "
        "and pass --data-dir DIR",
    ),
    "cifar10": Reader(
        cifar.read_cifar10,
        "60,000 photographs, 32x32, 10 classes",
        "cifar-10-batches-bin",
        (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", "batches.meta.txt"),
        "unpack the official binary version, cifar-10-binary.tar.gz, in DIR and pass --data-dir DIR",
    ),
    "cifar100": Reader(
        cifar.read_cifar100,
        "60,000 photographs, 32x32, 100 classes",
        "cifar-100-binary",
        ("train.bin", "test.bin", "fine_label_names.txt"),
        "unpack the official binary version, cifar-100-binary.tar.gz, in DIR and pass --data-dir DIR",
    ),
}


def load_dataset(data: str, data_dir: Path | None = None) -> Dataset:
    """A named set, or the .npz file at a path."""
    if data in READERS:
        folder = find_folder(data, data_dir)
        if folder is None:
            searched = ", ".join(map(str, _data_folders(data_dir)))
            raise UserError(f"{data} is not in any of {searched}: {READERS[data].get}")
        return READERS[data].read(folder)
    path = Path(data)
    if path.suffix == ".npz" and path.is_file():
        return arrays.read(path)
    if path.suffix or len(path.parts) > 1:
        raise UserError(f"{data} {'is no .npz file' if path.exists() else 'does not exist'}")
    nearest = difflib.get_close_matches(data, READERS, n=1)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    raise UserError(f"unknown data set {data!r}; {hint}Known: {', '.join(READERS)}, or the path of an .npz file")


def find_folder(name: str, data_dir: Path | None = None) -> Path | None:
    """Where a named set's files are: in a data folder itself or in the set's usual folder below it."""
    reader = READERS[name]
    if not reader.files:
        return Path()
    others = {other.folder for other in READERS.values()} - {reader.folder}
    bases = list(_data_folders(data_dir))
    # the folder itself will do, but not where it is another set's: MNIST and Fashion-MNIST have files of the same names
    candidates = [*(base / reader.folder for base in bases), *(base for base in bases if base.name not in others)]
    return next((folder for folder in candidates if _has(folder, reader.files)), None)


def _data_folders(data_dir: Path | None) -> Iterator[Path]:
    if data_dir is not None:
        yield data_dir  # asked for by name: look nowhere else
        return
    if os.environ.get(ENVIRONMENT):
        yield Path(os.environ[ENVIRONMENT])
    yield from (Path(folder).expanduser() for folder in SYSTEM_FOLDERS)


def _has(folder: Path, files: tuple[str, ...]) -> bool:
    return all(idx.find(folder, file).is_file() for file in files)


def prepare(dataset: Dataset, done: Preprocessing | None = None) -> tuple[Dataset, Preprocessing]:
    """The set ready for the network, and what was done to it; tables are standardised by their training columns.

    With a run's stored preprocessing that one is applied, whatever the data look like today.
    """
    done = done or _measure(dataset)
    if dataset.train.inputs.shape[1:] != done.input_shape:
        raise UserError(f"the run takes inputs of shape {done.input_shape}, {dataset.name} has {dataset.input_shape}")
    if len(done.input_shape) > 1:
        return dataset, done
    train, test = (replace(s, inputs=standardise(s.inputs, done)) for s in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test), done


def _measure(dataset: Dataset) -> Preprocessing:
    """The preprocessing that the training part asks for."""
    if len(dataset.input_shape) > 1:
        return Preprocessing(dataset.input_shape, channel_means(dataset.train))
    mean = dataset.train.inputs.double().mean(0)
    std = dataset.train.inputs.double().std(0, correction=0)
    std = torch.where(std > 0, std, torch.ones_like(std))  # a constant column carries nothing and stays at zero
    features = dataset.input_shape[0]
    return Preprocessing((features,), (0.0,) * features, DEVIATIONS, tuple(mean.tolist()), tuple(std.tolist()))


def standardise(rows: torch.Tensor, done: Preprocessing) -> torch.Tensor:
    """Raw rows of a table in units of the training columns' standard deviations."""
    mean, std = torch.tensor([done.column_mean, done.column_std], dtype=torch.float64)
    return ((rows.double() - mean) / std).float()
