"""CIFAR-10 and CIFAR-100 in their official binary and python versions."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from lipscale.data.dataset import Dataset, Samples
from lipscale.data.memory import reading, require_memory
from lipscale.data.plain_pickle import read_plain_pickle
from lipscale.errors import UserError

PIXEL_BYTES = 3 * 32 * 32


def read_cifar10(folder: Path) -> Dataset:
    """50,000 training and 10,000 test images, 32x32, ten classes; one label byte a record."""
    parts = [folder / f"data_batch_{i}" for i in range(1, 6)], [folder / "test_batch"]
    if parts[0][0].is_file():
        classes = _pickled_names(folder / "batches.meta", "label_names")
        train, test = (_pickled(paths, "labels") for paths in parts)
    else:
        classes = _names(folder / "batches.meta.txt")
        train, test = (_records(paths, label_bytes=1) for paths in parts)
    return Dataset("cifar10", train, test, classes, augmentation="crop+flip")


def read_cifar100(folder: Path) -> Dataset:
    """The images of a hundred classes; a coarse and a fine label each, of which the fine one counts."""
    parts = [folder / "train"], [folder / "test"]
    if (folder / "meta").is_file():
        classes = _pickled_names(folder / "meta", "fine_label_names")
        train, test = (_pickled(paths, "fine_labels") for paths in parts)
    else:
        classes = _names(folder / "fine_label_names.txt")
        train, test = (_records(paths, label_bytes=2) for paths in parts)
    return Dataset("cifar100", train, test, classes, augmentation="crop+flip")


def _names(path: Path) -> tuple[str, ...]:
    with reading(path, "class names"):
        return tuple(path.read_text().split())


def _records(paths: Sequence[Path], *, label_bytes: int) -> Samples:
    """Records of label bytes and 3,072 channel-first pixel bytes."""
    size = label_bytes + PIXEL_BYTES
    rows = []
    for path in (path.with_suffix(".bin") for path in paths):
        with reading(path, "records of CIFAR") as length:
            require_memory(2 * length, str(path))
            if length == 0 or length % size:
                raise UserError(f"{path} is truncated: {length} bytes are not a multiple of {size}; get it again")
            rows.append(np.fromfile(path, np.uint8).reshape(-1, size))
    table = torch.from_numpy(np.concatenate(rows))
    return Samples(table[:, label_bytes:].reshape(-1, 3, 32, 32).clone(), table[:, label_bytes - 1].long())


def _pickled(paths: Sequence[Path], key: str) -> Samples:
    """Batches of the python version: a pickled dictionary of pixel rows and labels."""
    pixels, labels = [], []
    for path in paths:
        batch = read_plain_pickle(path)
        rows, found = batch.get("data"), batch.get(key)
        if not isinstance(rows, np.ndarray) or rows.shape[1:] != (PIXEL_BYTES,):
            raise UserError(f"{path}: expected 'data' as rows of {PIXEL_BYTES} bytes; get it again")
        if not isinstance(found, list) or not all(type(label) is int and 0 <= label < 100 for label in found):
            raise UserError(f"{path}: expected {key!r} as a list of whole numbers in 0..99; get it again")
        if len(found) != len(rows):
            raise UserError(f"{path}: {len(rows)} images do not go with its {len(found)} labels; get it again")
        pixels.append(rows.reshape(-1, 3, 32, 32))
        labels += found
    return Samples(torch.from_numpy(np.concatenate(pixels)), torch.tensor(labels, dtype=torch.int64))


def _pickled_names(path: Path, key: str) -> tuple[str, ...]:
    names = read_plain_pickle(path).get(key)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: expected {key!r} as a list of names; get it again")
    return tuple(names)
