"""Inputs that stay on disk: rows of one memory-mapped array, fetched batch by batch."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lipscale.data.memory import gigabytes
from lipscale.errors import UserError

ENVIRONMENT = "LIPSCALE_CACHE"
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Stored:
    """Some rows of an array on disk. It indexes like a tensor, and only what is asked for is ever in memory."""

    base: Tensor  # (M, C, H, W), memory-mapped
    rows: Tensor  # (N,): which of them, in which order
    device: torch.device = CPU

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        index = index.cpu() if isinstance(index, Tensor) else index
        return self.base[self.rows[index]].to(self.device)

    @property
    def shape(self) -> torch.Size:
        """(N, C, H, W)."""
        return torch.Size((len(self.rows), *self.base.shape[1:]))

    @property
    def ndim(self) -> int:
        """The number of dimensions, N included."""
        return self.base.ndim

    @property
    def dtype(self) -> torch.dtype:
        """Bytes, as a rule."""
        return self.base.dtype

    def split(self, size: int) -> Iterator[Tensor]:
        """The rows in memory, so many at a time."""
        return (self.base[rows].to(self.device) for rows in self.rows.split(size))

    def select(self, indices: Tensor) -> Self:
        """Fewer rows of the same array; nothing is read."""
        return replace(self, rows=self.rows[indices.cpu()])

    def join(self, other: Self) -> Self:
        """These rows, then those of another part of the same array."""
        assert other.base is self.base
        return replace(self, rows=torch.cat((self.rows, other.rows)))

    def to(self, device: torch.device) -> Self:
        """The same rows, delivered to a device."""
        return replace(self, device=device)


def array_on_disk(shape: tuple[int, ...]) -> np.ndarray:
    """Writable bytes in a file without a name, in $LIPSCALE_CACHE or ~/.cache/lipscale; it is gone with the process."""
    folder = Path(os.environ.get(ENVIRONMENT) or "~/.cache/lipscale").expanduser()
    size = prod(shape)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # a full disk says so now and not by a crash later
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return np.memmap(file, np.uint8, "r+", shape=shape)
    except OSError as error:
        way_out = f"free some space, set {ENVIRONMENT} to another folder or give a smaller `image_size`"
        raise UserError(f"cannot keep {gigabytes(size)} of pixels in {folder}: {error.strerror}; {way_out}") from error
