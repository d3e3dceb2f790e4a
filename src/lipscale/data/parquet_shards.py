"""Parquet files that make one set: rows of a table, or pictures in a column, as Hugging Face stores them."""

from collections import UserDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lipscale.data.cells import Cells
from lipscale.data.dataset import Samples, listed
from lipscale.data.folder import choose_shape
from lipscale.data.memory import decoding, reading, require_memory
from lipscale.data.pictures import Source, in_parallel, look, read_picture
from lipscale.data.stored import Stored, written
from lipscale.data.table_file import TableFile, open_table, require_plausible, unpacked_size
from lipscale.errors import UserError
from lipscale.settings import DataSettings

PICTURES_AT_ONCE = 64


@dataclass(frozen=True)
class ParquetShards(TableFile):
    """Files with the same columns; a column is read at a time, from all of them."""

    files: tuple[TableFile, ...]
    counts: tuple[int, ...]  # their rows

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return [file.path for file in self.files]

    @property
    def is_sharded(self) -> bool:
        """It may be larger than memory."""
        return True

    def opened(self) -> AbstractContextManager[Any]:
        """In here the columns are looked at."""
        return decoding(str(self.path), "a table")

    def place(self, row: int) -> str:
        """The file, and the row in it."""
        ends = [*accumulate(self.counts)]
        at = next(i for i, end in enumerate(ends) if row < end)
        return f"row {row - ends[at] + self.counts[at] + 1} of {self.files[at].path.name}"

    def read(self, wanted: list[str], texts: set[str]) -> Any:
        """The wanted columns, each of them read when it is asked for."""
        return _OneByOne((name, partial(self._column, name, texts)) for name in wanted)

    def _column(self, name: str, texts: set[str]) -> Any:
        import pyarrow as pa

        return pa.chunked_array([chunk for file in self.files for chunk in file.read([name], texts)[name].chunks])


class _OneByOne(UserDict[str, Any]):
    """Values that are made when they are asked for, and not kept."""

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name)()


def open_shards(paths: Sequence[Path], where: Path) -> ParquetShards:
    """Parquet files as one table; all must have the columns of the first, of the same types."""
    import pyarrow.parquet as pq

    files, counts, schemas = [], [], []
    for path in paths:
        files.append(open_table(path))
        with reading(path, "a Parquet file"):
            schemas.append(pq.read_schema(path))
            counts.append(pq.read_metadata(path).num_rows)
        if counts[-1] == 0:
            raise UserError(f"{path} is empty: remove it")
        for name in {*schemas[0].names} ^ {*schemas[-1].names}:
            lacking, having = (path, paths[0]) if name in schemas[0].names else (paths[0], path)
            raise UserError(f"{lacking} has no column {name!r}, and {having.name} has: give them the same columns")
        for column in schemas[0]:
            if (kind := schemas[-1].field(column.name).type) != column.type:
                problem = f"column {column.name!r} holds {kind}, and {column.type} in {paths[0].name}"
                raise UserError(f"{path}: {problem}: give it one type")
    return ParquetShards(where, files[0].names, tuple(files), tuple(counts))


def picture_column(path: Path, settings: DataSettings) -> str | None:
    """The column of a Parquet file that holds pictures, as structs with `bytes`; most tables have none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reading(path, "a Parquet file"):
        schema = pq.read_schema(path)
    structs = [field for field in schema if pa.types.is_struct(field.type) and field.name not in settings.drop]
    parts = {field.name: {part.name: part.type for part in field.type} for field in structs}
    found = [name for name, kinds in parts.items() if kinds.get("bytes") in (pa.binary(), pa.large_binary())]
    if len(found) > 1:
        raise UserError(f"{path} has several columns of pictures, {listed(found)}: leave all but one out (`drop`)")
    return found[0] if found else None


def picture_shape(source: ParquetShards, column: str, settings: DataSettings) -> tuple[int, ...]:
    """(C, H, W) that suits all pictures of a column."""
    return choose_shape(in_parallel(look, _pictures(source, column)), settings)


def read_pictures(
    source: ParquetShards,
    column: str,
    settings: DataSettings,
    *,
    classes: tuple[str, ...],
    shape: tuple[int, ...],
    fit: str,
) -> tuple[Samples, tuple[str, ...]]:
    """Pictures, decoded once to a file without a name, and their classes."""
    assert settings.label is not None
    source.require([settings.label], "the label")
    with source.opened():
        cells = Cells(source, settings.label, source.read([settings.label], set())[settings.label], as_text=True)
        classes, targets = cells.as_labels(classes)
    decoded = in_parallel(partial(read_picture, shape=shape, fit=fit), _pictures(source, column))
    pixels = written(decoded, len(targets), shape, np.uint8)
    return Samples(Stored.of(pixels), torch.from_numpy(targets).long()), classes


def _pictures(source: ParquetShards, column: str) -> Iterator[Source]:
    """The bytes of each picture, and what to call it."""
    import pyarrow.parquet as pq

    for shard in source.files:
        with reading(shard.path, "a Parquet file") as size, pq.ParquetFile(shard.path) as file:
            unpacked = unpacked_size(file, [column])
            require_plausible(shard.path, unpacked, size)
            require_memory(2 * unpacked // max(1, file.num_row_groups), f"a row group of {shard.path}")
            row = 0
            for batch in file.iter_batches(PICTURES_AT_ONCE, columns=[f"{column}.bytes"], use_threads=False):
                for cell in batch.column(0).field("bytes").to_pylist():
                    row += 1
                    if cell is None:
                        raise UserError(f"{shard.path}, row {row} holds no picture: remove it")
                    yield cell, f"{shard.path}, row {row}"
