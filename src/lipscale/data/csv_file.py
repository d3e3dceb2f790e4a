"""A CSV file as columns of pyarrow; the standard library names the columns and finds the line of an error."""

import csv
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from lipscale.data.memory import require_file, require_memory
from lipscale.data.table import MISSING, Source, number, shortened
from lipscale.errors import UserError

DELIMITERS = ",;\t|"
LONGEST_LINE = 1 << 20

Columns = dict[str, Any]


def open_csv(path: Path) -> Source:
    """The file's column names, and its columns when they are asked for. Separators are , ; | or tabs; text is UTF-8."""
    require_memory(6 * require_file(path), str(path))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            line = file.readline(LONGEST_LINE)
    except (OSError, UnicodeDecodeError) as error:
        raise _no_csv(path, error) from error
    if len(line) == LONGEST_LINE:
        raise UserError(f"{path}, line 1 is longer than a million characters: is it a CSV file?")
    delimiter = max(DELIMITERS, key=line.count)
    header, row = next(_rows(path, delimiter), (1, []))
    names = tuple(name.strip() for name in row)
    if not any(names):
        raise UserError(f"{path}, line 1: expected the names of the columns, got an empty line")
    if all(number(name) is not None for name in names):
        raise UserError(f"{path}, line 1 holds numbers ({shortened(names)}); its first line must name the columns")
    return Source(path, names, partial(_read, path, delimiter, header, names), partial(_line, path, delimiter))


def _read(
    path: Path, delimiter: str, header: int, names: tuple[str, ...], wanted: list[str], texts: set[str]
) -> Columns:
    """Columns of float64 where all cells are numbers; elsewhere, and for `texts`, a dictionary of texts."""
    import pyarrow as pa
    import pyarrow.csv as arrow

    def blank(row: Any) -> str:
        return "error" if row.text.strip() else "skip"

    def read(columns: list[str], texts: Iterable[str]) -> Columns:
        found = arrow.read_csv(
            path,
            arrow.ReadOptions(use_threads=False, block_size=1 << 24, skip_rows=header, column_names=names),
            arrow.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=blank),
            arrow.ConvertOptions(
                column_types=dict.fromkeys(texts, pa.dictionary(pa.int32(), pa.string())),
                null_values=[form(text) for text in MISSING for form in (str.lower, str.upper, str.title)],
                include_columns=columns,
            ),
        )
        return {name: found.column(name) for name in columns}

    try:
        if _has_quotes(path):  # pyarrow forgives what is behind a closing quote
            _check(path, delimiter, len(names))
        found = read(wanted, texts)
        for name, column in found.items():
            if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type):
                found[name] = column.cast(pa.float64(), safe=False)
        others = [name for name in wanted if name not in texts and not pa.types.is_floating(found[name].type)]
        return found | (read(others, others) if others else {})
    except (pa.ArrowException, OSError) as error:
        _check(path, delimiter, len(names))
        if "Empty CSV file" in str(error):
            raise UserError(f"{path} holds no row below its column names") from error
        raise _no_csv(path, error) from error


def _has_quotes(path: Path) -> bool:
    with path.open("rb") as file:
        return any(b'"' in block for block in iter(lambda: file.read(1 << 20), b""))


def _check(path: Path, delimiter: str, width: int) -> None:
    """Name the first line that is no row of the table."""
    for line, row in _rows(path, delimiter):
        if len(row) != width:
            raise UserError(f"{path}, line {line}: expected {width} cells as in the first line, got {len(row)}")


def _line(path: Path, delimiter: str, row: int) -> str:
    """Where a row below the names stands; cells may have line breaks, so only another reading can tell."""
    return f"line {next(islice(_rows(path, delimiter), row + 1, None), (row + 2, []))[0]}"


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with the number of the line that it ends on."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            for row in reader:
                if row and (len(row) > 1 or row[0].strip()):
                    yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _no_csv(path, error) from error


def _no_csv(path: Path, error: Exception) -> UserError:
    if isinstance(error, UnicodeDecodeError):
        return UserError(f"{path} is no UTF-8 text (byte {error.object[error.start]:#04x}); save it as CSV in UTF-8")
    return UserError(f"{path} is no CSV file ({' '.join(str(error).split())[:120]}); check its quotes")
