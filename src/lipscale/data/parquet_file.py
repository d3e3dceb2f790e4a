"""A Parquet file as chunks of columns, read by pyarrow a few thousand rows at a time."""

from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import numpy as np

from lipscale.data.memory import require_memory
from lipscale.data.table import Cells, Chunk, Source
from lipscale.errors import UserError

ROWS = 8192


def open_parquet(path: Path) -> Source:
    """The file's column names, and its rows when they are asked for."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no Parquet file ({_first_line(error)})") from error
    names = tuple(map(str, schema.names))
    for i, name in enumerate(names):
        if name in names[:i]:
            raise UserError(f"{path}: two columns are called {name!r}")
    # the file's own word for its size, checked before anything is read
    require_memory(8 * max(0, rows) * max(1, len(names)), f"{path}, {rows} rows and {len(names)} columns,")
    return Source(path, names, lambda wanted: _chunks(path, names, wanted), place="row")


def _chunks(path: Path, names: tuple[str, ...], wanted: Set[int]) -> Iterator[Chunk]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = 1
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS, use_threads=False):
                columns = [_cells(batch.column(i), path, names[i]) if i in wanted else [] for i in range(len(names))]
                yield Chunk(columns, range(first, first + batch.num_rows))
                first += batch.num_rows
    except (pa.ArrowException, OSError, ValueError, UnicodeDecodeError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is a damaged Parquet file ({_first_line(error)})") from error


def _cells(column: Any, path: Path, name: str) -> Cells:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ["" if value is None else str(value) for value in column.to_pylist()]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.array(numbers, dtype=np.float64)  # nulls are NaN; its own memory, which may be written to
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan)
    raise UserError(
        f"{path}: column {name!r} holds {kind}, neither numbers nor text; convert it or leave it out (--drop {name})"
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
