"""A Parquet file as columns of pyarrow. Texts stay in dictionaries, so that a long one that repeats is there once."""

from functools import partial
from pathlib import Path
from typing import Any

from lipscale.data.memory import gigabytes, require_file, require_memory
from lipscale.data.table import Source
from lipscale.errors import UserError

LARGE = 300_000_000  # bytes; what is larger, and very much larger than its file, is no table
MOST_TIMES = 500


def open_parquet(path: Path) -> Source:
    """The file's column names, and its columns when they are asked for."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    require_memory(2 * require_file(path), str(path))
    try:
        with pq.ParquetFile(path) as file:
            names = tuple(map(str, file.schema_arrow.names))
            texts = {field.name for field in file.schema_arrow if _is_text(field.type)}
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} is no Parquet file ({_first_line(error)})") from error
    return Source(path, names, partial(_read, path, texts), lambda row: f"row {row + 1}")


def _read(path: Path, texts: set[str], wanted: list[str], _: set[str]) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, read_dictionary=[*texts.intersection(wanted)]) as file:
            about = file.metadata
            # the file's own word for its size, checked before anything is read
            unpacked = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
            if unpacked > max(LARGE, MOST_TIMES * require_file(path)):
                raise UserError(f"{path} would unpack to {gigabytes(unpacked)}, {MOST_TIMES} times its size or more")
            size = max(2 * unpacked, 8 * about.num_rows * len(wanted))
            require_memory(size, f"{path} ({about.num_rows} rows and {len(wanted)} columns)")
            found = file.read(wanted, use_threads=False)
        return {name: _cells(found.column(name), path, name) for name in wanted}
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is a damaged Parquet file ({_first_line(error)})") from error


def _cells(column: Any, path: Path, name: str) -> Any:
    """Numbers as float64, texts and truths in a dictionary."""
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = pa.types.is_dictionary(column.type)
    kind = column.type.value_type if coded else column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return (column.cast(kind) if coded else column).cast(pa.float64(), safe=False)
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "True", "False").dictionary_encode()
    if _is_text(kind):
        return column if coded else column.dictionary_encode()
    raise UserError(f"{path}: column {name!r} holds {kind}, no numbers or text; convert it or leave it out (`drop`)")


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
