"""A table that stays on disk: raw numbers, one column behind the other, since tables are measured by columns."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lipscale.data.stored import Place, Stored, scratch

NUMBER = np.dtype(np.float64)  # a large offset would swallow a column in float32


@dataclass(frozen=True)
class Columns:
    """Columns of so many rows, one behind the other in a file without a name."""

    place: Place
    rows: int

    @classmethod
    def empty(cls, rows: int, columns: int) -> "Columns":
        """Room for a table."""
        return cls(Place("the cache", scratch(rows * columns * NUMBER.itemsize), 0, columns), rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """(M, columns)."""
        return self.rows, self.place.count

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers."""
        return torch.float64

    def write(self, column: int, values: np.ndarray, first: int = 0) -> None:
        """Values of a column, from some row on."""
        self.place.file.seek((column * self.rows + first) * NUMBER.itemsize)
        self.place.file.write(np.ascontiguousarray(values, NUMBER).data)

    def read(self, column: int, rows: np.ndarray) -> np.ndarray:
        """Values of a column: all between the first row and the last that are wanted come into memory."""
        low = int(rows.min())
        found = np.empty(int(rows.max()) + 1 - low, NUMBER)
        self.place.read((column * self.rows + low) * NUMBER.itemsize, found)
        return found[rows - low]

    def fetch(self, rows: np.ndarray) -> Tensor:
        """Some rows, in the order in which they are asked for."""
        columns = range(self.shape[1] if len(rows) else 0)
        return torch.from_numpy(np.array([self.read(i, rows) for i in columns]).reshape(self.shape[1], -1).T.copy())

    def first(self, columns: int) -> "Columns":
        """The first columns alone: fewer may have turned out to be worth keeping."""
        place = self.place
        return Columns(Place(place.path, place.file, place.start, columns, place.alone), self.rows)


def columns_of(inputs: Tensor | Stored) -> Iterator[Tensor]:
    """The columns of raw rows, one after the other."""
    if isinstance(inputs, Tensor):
        yield from inputs.unbind(1)
        return
    assert isinstance(inputs.base, Columns)
    for i in range(inputs.shape[1]):
        yield torch.from_numpy(inputs.base.read(i, inputs.rows.numpy()))
