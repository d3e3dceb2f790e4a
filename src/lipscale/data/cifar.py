"""CIFAR-10 and CIFAR-100 in their official binary and python versions."""

from functools import partial, reduce
from pathlib import Path

import numpy as np
import torch

from lipscale.data.dataset import Dataset, Samples
from lipscale.data.memory import reading, require_memory
from lipscale.data.plain_pickle import read_plain_pickle
from lipscale.errors import UserError

PIXEL_BYTES = 3 * 32 * 32
CIFAR10 = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def _read(name: str, files: tuple[str, ...], meta: str, names: str, labels: tuple[str, ...], folder: Path) -> Dataset:
    """50,000 training and 10,000 test images (the last file), 32x32; of several labels the last counts."""
    if (folder / meta).is_file():
        classes = read_plain_pickle(folder / meta).get(f"{labels[-1][:-1]}_names")
        if not isinstance(classes, list) or not classes or not all(isinstance(name, str) for name in classes):
            raise UserError(f"{folder / meta}: expected '{labels[-1][:-1]}_names' as a list of names; get it again")
        parts = [_pickled(folder / file, labels[-1]) for file in files]
    else:
        with reading(folder / names, "class names"):
            classes = (folder / names).read_text(encoding="utf-8").split()
        parts = [_records(folder / f"{file}.bin", len(labels)) for file in files]
    return Dataset(name, reduce(Samples.join, parts[:-1]), parts[-1], tuple(classes), augmentation="crop+flip")


read_cifar10 = partial(_read, "cifar10", CIFAR10, "batches.meta", "batches.meta.txt", ("labels",))
read_cifar100 = partial(
    _read, "cifar100", ("train", "test"), "meta", "fine_label_names.txt", ("coarse_labels", "fine_labels")
)


def _records(path: Path, label_bytes: int) -> Samples:
    """The binary version: records of label bytes and 3,072 channel-first pixel bytes."""
    size = label_bytes + PIXEL_BYTES
    with reading(path, "records of CIFAR") as length:
        require_memory(2 * length, str(path))
        if length == 0 or length % size:
            raise UserError(f"{path} is truncated: {length} bytes are not a multiple of {size}; get it again")
        rows = torch.from_numpy(np.fromfile(path, np.uint8)).view(-1, size)
    return Samples(rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1].long())


def _pickled(path: Path, key: str) -> Samples:
    """The python version: a pickled dictionary of pixel rows and labels."""
    batch = read_plain_pickle(path)
    rows, labels = batch.get("data"), batch.get(key)
    if not isinstance(rows, np.ndarray) or rows.shape[1:] != (PIXEL_BYTES,):
        raise UserError(f"{path}: expected 'data' as rows of {PIXEL_BYTES} bytes; get it again")
    labels = labels if isinstance(labels, list) and len(labels) == len(rows) else [None]
    if not all(type(label) is int and 0 <= label < 100 for label in labels):
        raise UserError(f"{path}: expected {key!r} as {len(rows)} whole numbers in 0..99; get it again")
    return Samples(torch.from_numpy(rows.reshape(-1, 3, 32, 32).copy()), torch.tensor(labels, dtype=torch.int64))
