"""MNIST and Fashion-MNIST: four files in the idx format, plain or gzipped."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipscale.data.dataset import Dataset, Samples
from lipscale.errors import UserError

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
DIGITS = tuple(map(str, range(10)))
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def read_mnist(folder: Path) -> Dataset:
    """60,000 training and 10,000 test images of handwritten digits, 28x28."""
    return _read(folder, "mnist", DIGITS)


def read_fashion_mnist(folder: Path) -> Dataset:
    """60,000 training and 10,000 test images of clothes, 28x28."""
    return _read(folder, "fashion-mnist", CLOTHES)


def _read(folder: Path, name: str, classes: tuple[str, ...]) -> Dataset:
    train_images, train_labels, test_images, test_labels = (read_idx(find(folder, file)) for file in FILES)
    return Dataset(
        name,
        Samples(train_images.unsqueeze(1), train_labels.long()),
        Samples(test_images.unsqueeze(1), test_labels.long()),
        classes,
    )


def find(folder: Path, name: str) -> Path:
    """The file, plain or gzipped."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), folder / name)


def read_idx(path: Path) -> Tensor:
    """An idx file of bytes: two zeros, type 8, the number of dimensions, each of them as a big-endian int, data."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or len(raw) < 4 + 4 * raw[3]:
        raise UserError(f"{path} is no idx file of bytes; get it again")
    shape = struct.unpack(f">{raw[3]}I", raw[4 : 4 + 4 * raw[3]])
    body = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3])
    if len(body) != np.prod(shape, dtype=np.int64):
        raise UserError(f"{path} is truncated: {len(body)} bytes where its header says {shape}; get it again")
    return torch.from_numpy(body.reshape(shape).copy())
