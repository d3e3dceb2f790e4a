"""Inputs that stay on disk: rows in files, fetched batch by batch."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from pathlib import Path
from threading import Lock
from typing import IO, Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from lipscale.data.memory import gigabytes
from lipscale.errors import UserError

ENVIRONMENT = "LIPSCALE_CACHE"
CPU = torch.device("cpu")


class Base(Protocol):
    """What rows can be fetched from."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(M, ...), of all rows."""

    @property
    def dtype(self) -> torch.dtype:
        """Of what is fetched."""

    def fetch(self, rows: np.ndarray) -> Tensor:
        """Some rows, in the order in which they are asked for."""


@dataclass(frozen=True)
class Place:
    """Rows that lie behind each other in an open file."""

    path: Path | str
    file: IO[bytes]
    start: int  # the byte at which the first one begins
    count: int
    alone: Lock = field(default_factory=Lock)  # a file has one place to read from, and batches are fetched ahead

    def read(self, start: int, out: np.ndarray) -> None:
        """Fill an array from this byte on."""
        with self.alone:
            self.file.seek(start)
            found = self.file.readinto(out.reshape(-1).view(np.uint8))  # type: ignore[attr-defined]
        if found != out.nbytes:
            raise UserError(f"{self.path} has become shorter while it was read; put the whole file back")


@dataclass(frozen=True)
class Rows:
    """Rows of one shape and kind, in one file or several."""

    places: tuple[Place, ...]
    row: tuple[int, ...]  # the shape of each
    kind: np.dtype[Any]  # as the files have it

    @cached_property
    def starts(self) -> np.ndarray:
        """The number of each file's first row, and of all rows."""
        return np.cumsum([0, *(place.count for place in self.places)])

    @property
    def shape(self) -> tuple[int, ...]:
        """(M, C, H, W) or (M, F)."""
        return int(self.starts[-1]), *self.row

    @property
    def dtype(self) -> torch.dtype:
        """Bytes stay bytes, all else is float32."""
        return torch.uint8 if self.kind == np.uint8 else torch.float32

    def fetch(self, rows: np.ndarray) -> Tensor:
        """Neighbours in a file are read at once."""
        order = np.argsort(rows, kind="stable")
        wanted, size = rows[order], prod(self.row) * self.kind.itemsize
        at = np.searchsorted(self.starts, wanted, side="right") - 1  # the file of each
        found = np.empty((len(rows), *self.row), self.kind)
        ends = np.flatnonzero((np.diff(wanted) != 1) | (np.diff(at) != 0)) + 1
        for first, last in pairwise((0, *ends.tolist(), len(rows)) if len(rows) else ()):
            place = self.places[at[first]]
            place.read(place.start + int(wanted[first] - self.starts[at[first]]) * size, found[first:last])
        if (order[1:] < order[:-1]).any():
            found = found[order.argsort()]
        return torch.from_numpy(found if self.kind == np.uint8 else found.astype(np.float32))


@dataclass(frozen=True)
class Stored:
    """Some rows on disk. It indexes like a tensor, and only what is asked for is ever in memory."""

    base: Base
    rows: Tensor  # (N,): which of them, in which order
    device: torch.device = CPU

    @classmethod
    def of(cls, base: Base) -> Self:
        """All rows."""
        return cls(base, torch.arange(base.shape[0]))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        index = index.cpu() if isinstance(index, Tensor) else index
        return self.base.fetch(self.rows[index].numpy()).to(self.device)

    @property
    def shape(self) -> torch.Size:
        """(N, C, H, W) or (N, F)."""
        return torch.Size((len(self.rows), *self.base.shape[1:]))

    @property
    def ndim(self) -> int:
        """The number of dimensions, N included."""
        return len(self.base.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of what comes into memory: bytes, as a rule."""
        return self.base.dtype

    def split(self, size: int) -> Iterator[Tensor]:
        """The rows in memory, so many at a time."""
        return (self[slice(start, start + size)] for start in range(0, len(self), size))

    def select(self, indices: Tensor) -> Self:
        """Fewer rows of the same files; nothing is read."""
        return replace(self, rows=self.rows[indices.cpu()])

    def join(self, other: Self) -> Self:
        """These rows, then those of another part of the same files."""
        assert other.base is self.base
        return replace(self, rows=torch.cat((self.rows, other.rows)))

    def to(self, device: torch.device) -> Self:
        """The same rows, delivered to a device."""
        return replace(self, device=device)


def scratch(size: int) -> IO[bytes]:
    """So many bytes in a file without a name, in $LIPSCALE_CACHE or ~/.cache/lipscale; it is gone with the process."""
    folder = Path(os.environ.get(ENVIRONMENT) or "~/.cache/lipscale").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (it lives as long as the rows in it)
        if hasattr(os, "posix_fallocate") and size:  # a full disk says so now and not later
            os.posix_fallocate(file.fileno(), 0, size)
        return file
    except OSError as error:
        way_out = f"free some space, set {ENVIRONMENT} to another folder or give a smaller `image_size`"
        raise UserError(f"cannot keep {gigabytes(size)} of inputs in {folder}: {error.strerror}; {way_out}") from error


def written(chunks: Iterator[np.ndarray], count: int, row: tuple[int, ...], kind: Any) -> Rows:
    """The rows that come, some at a time, in a file without a name."""
    kind = np.dtype(kind)
    file = scratch(count * prod(row) * kind.itemsize)
    for chunk in chunks:
        file.write(np.ascontiguousarray(chunk, kind).data)
    return Rows((Place("the cache", file, 0, count),), row, kind)
