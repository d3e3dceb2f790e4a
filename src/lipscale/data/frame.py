"""A table in memory: a DataFrame of pandas or polars, an Arrow table, a dictionary of columns or a list of rows."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lipscale.data.table_file import TableFile
from lipscale.errors import UserError

NAME = Path("the table")  # what errors call it


@dataclass(frozen=True)
class Frame(TableFile):
    """A table that is in memory already, as Arrow has it."""

    table: Any

    def opened(self) -> AbstractContextManager[Any]:
        """Nothing to open."""
        return nullcontext()

    def read(self, wanted: list[str], texts: set[str]) -> dict[str, Any]:
        """The wanted columns; they have their types already."""
        return {name: self.table[name] for name in wanted}


def is_frame(rows: Any) -> bool:
    """Whether this is a table with named columns."""
    if isinstance(rows, list | tuple):
        return bool(rows) and all(isinstance(row, Mapping) for row in rows)
    return isinstance(rows, Mapping) or hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__dataframe__")


def open_frame(rows: Any) -> Frame:
    """A table in memory. pandas is no dependency: pyarrow knows its DataFrames, and others by Arrow's interface."""
    import pyarrow as pa

    try:
        table = pa.Table.from_pylist(rows) if isinstance(rows, list | tuple) else pa.table(rows)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = " ".join(str(part) for part in error.args)[:200]
        raise UserError(f"cannot read the {type(rows).__name__} as a table ({' '.join(reason.split())})") from error
    return Frame(NAME, tuple(table.column_names), table)
