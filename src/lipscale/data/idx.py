"""MNIST and Fashion-MNIST: four files in the idx format, plain or gzipped."""

import gzip
import struct
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipscale.data.dataset import Dataset, Samples
from lipscale.data.memory import reading, require_memory
from lipscale.errors import UserError

FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"


def _read(name: str, classes: tuple[str, ...], folder: Path) -> Dataset:
    """60,000 training and 10,000 test images, 28x28."""
    parts = [read_idx(find(folder, file), dimensions=(3 if "images" in file else 1,)) for file in FILES]
    train, test = (Samples(images.unsqueeze(1), labels.long()) for images, labels in (parts[:2], parts[2:]))
    return Dataset(name, train, test, classes)


read_mnist = partial(_read, "mnist", tuple("0123456789"))
read_fashion_mnist = partial(_read, "fashion-mnist", tuple(CLOTHES.split(",")))


def find(folder: Path, name: str) -> Path:
    """The file, plain or gzipped."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), folder / name)


def read_idx(path: Path, *, dimensions: tuple[int, ...] = (1, 2, 3, 4)) -> Tensor:
    """An idx file of bytes: two zeros, type 8, the number of dimensions, each of them as a big-endian int, data."""
    with reading(path, "an idx file"), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        head = file.read(4)
        if len(head) < 4 or head[:3] != b"\0\0\x08" or head[3] not in dimensions:
            raise UserError(f"{path} is no idx file of bytes of {dimensions} dimensions; get it again")
        shape = struct.unpack(f">{head[3]}I", file.read(4 * head[3]))
        require_memory(prod(shape), f"{path}, by its header {shape},")
        body = file.read(prod(shape) + 1)  # one more than it should have, and no more: a bomb stays shut
    if not body or len(body) != prod(shape):
        amount = "more" if len(body) > prod(shape) else len(body)
        raise UserError(f"{path} is empty, truncated or too long: {amount} bytes, by its header {shape}; get it again")
    return torch.from_numpy(np.frombuffer(body, np.uint8).reshape(shape).copy())
