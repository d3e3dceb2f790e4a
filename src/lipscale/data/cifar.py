"""CIFAR-10 and CIFAR-100 in their official binary version."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from lipscale.data.dataset import Dataset, Samples
from lipscale.errors import UserError

PIXEL_BYTES = 3 * 32 * 32


def read_cifar10(folder: Path) -> Dataset:
    """50,000 training and 10,000 test images, 32x32, ten classes; one label byte a record."""
    batches = [folder / f"data_batch_{i}.bin" for i in range(1, 6)]
    classes = _names(folder / "batches.meta.txt")
    train, test = _records(batches, label_bytes=1), _records([folder / "test_batch.bin"], label_bytes=1)
    return Dataset("cifar10", train, test, classes, augmentation="crop+flip")


def read_cifar100(folder: Path) -> Dataset:
    """The images of a hundred classes; a coarse and a fine label byte a record, of which the fine one counts."""
    classes = _names(folder / "fine_label_names.txt")
    train, test = (
        _records([folder / "train.bin"], label_bytes=2),
        _records([folder / "test.bin"], label_bytes=2),
    )
    return Dataset("cifar100", train, test, classes, augmentation="crop+flip")


def _names(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text().split())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the class names in {path}: {error}") from error


def _records(paths: Sequence[Path], *, label_bytes: int) -> Samples:
    """Records of label bytes and 3,072 channel-first pixel bytes."""
    size = label_bytes + PIXEL_BYTES
    rows = []
    for path in paths:
        try:
            raw = np.fromfile(path, np.uint8)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error}") from error
        if len(raw) == 0 or len(raw) % size:
            raise UserError(f"{path} is truncated: {len(raw)} bytes are not a multiple of {size}; get it again")
        rows.append(raw.reshape(-1, size))
    table = torch.from_numpy(np.concatenate(rows))
    return Samples(table[:, label_bytes:].reshape(-1, 3, 32, 32).clone(), table[:, label_bytes - 1].long())
