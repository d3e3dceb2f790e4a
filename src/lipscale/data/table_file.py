"""CSV and Parquet files, read by pyarrow: columns of float64, or texts in a dictionary, so that each is there once."""

import csv
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from lipscale.data.dataset import hint, listed
from lipscale.data.memory import gigabytes, reading, require_memory
from lipscale.errors import UserError

PARQUET = (".parquet", ".pq")
TABLES = (".csv", ".tsv", ".txt", *PARQUET)
MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "-")
NULLS = [form(text) for text in MISSING for form in (str.lower, str.upper, str.title)]
MOST_COLUMNS = 20_000
ROW_NUMBERS = "Unnamed: 0"  # as pandas calls them
LONGEST_LINE = 1 << 20
PADDED = r"^\s*0[0-9]+\s*$"
LARGE = 300_000_000  # bytes; a Parquet file that unpacks to more, and to very much more than its size, is no table
MOST_TIMES = 500


@dataclass(frozen=True)
class TableFile:
    """A file with named columns; this one is a Parquet file."""

    path: Path
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.names) > MOST_COLUMNS:
            raise UserError(f"{self.path} has {len(self.names)} columns; give at most {MOST_COLUMNS}, or an .npz file")
        if "" in self.names:
            raise UserError(f"{self.path}: column {self.names.index('') + 1} has no name")
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise UserError(f"{self.path}: two columns are called {twice!r}")

    @property
    def has_decimal_commas(self) -> bool:
        """Whether a comma in a number can only be a decimal one."""
        return False

    @property
    def is_sharded(self) -> bool:
        """Whether it is in several files, and may be larger than memory."""
        return False

    def require(self, names: Iterable[str], what: str) -> None:
        """Refuse names of columns that are not there, all at once; the error names the nearest one."""
        if absent := [name for name in names if name not in self.names]:
            column = f"column {absent[0]!r}" if len(absent) == 1 else f"columns {listed([*map(repr, absent)])}"
            raise UserError(f"{self.path} has no {column} ({what}); {hint(absent[0], self.names[:1000])}")

    def opened(self) -> AbstractContextManager[Any]:
        """In here the columns are looked at: damage of a Parquet file may show only then."""
        return reading(self.path, "a table")

    def place(self, row: int) -> str:
        """What people call a row."""
        return f"row {row + 1}"

    def read(self, wanted: list[str], texts: set[str]) -> dict[str, Any]:
        """The wanted columns, as pyarrow has them; those in `texts` as texts even if they look like numbers."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with reading(self.path, "a Parquet file, it is damaged") as size:
            strings = [f.name for f in pq.read_schema(self.path) if f.type in (pa.string(), pa.large_string())]
            with pq.ParquetFile(self.path, read_dictionary=strings) as file:
                rows, unpacked = file.metadata.num_rows, unpacked_size(file, wanted)
                require_plausible(self.path, unpacked, size)
                require_memory(max(2 * unpacked, 8 * rows * len(wanted)), f"{self.path} ({rows} rows)")
                found = file.read(wanted, use_threads=False)
            return dict(zip(found.column_names, found.itercolumns(), strict=True))


def unpacked_size(file: Any, columns: Iterable[str]) -> int:
    """A Parquet file's own word for the bytes that these columns take."""
    wanted = set(columns)
    groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
    cells = (group.column(i) for group in groups for i in range(group.num_columns))
    mine = (cell for cell in cells if wanted & {cell.path_in_schema, cell.path_in_schema.split(".")[0]})
    return sum(cell.total_uncompressed_size for cell in mine)


def require_plausible(path: Path, unpacked: int, size: int) -> None:
    """Refuse a file that would unpack to very much more than its size, before anything is read."""
    if unpacked > max(LARGE, MOST_TIMES * size):
        raise UserError(f"{path} would unpack to {gigabytes(unpacked)}, {MOST_TIMES} times its size")


@dataclass(frozen=True)
class CsvFile(TableFile):
    """A CSV file; the standard library names the columns and finds the line of an error."""

    delimiter: str
    header: int  # how many lines the names take; none where the columns have no names

    def place(self, row: int) -> str:
        """The line; cells may have line breaks, so only another reading can tell."""
        return f"line {next(islice(_rows(self.path, self.delimiter), row + bool(self.header), None))[0]}"

    @property
    def has_decimal_commas(self) -> bool:
        """Whether a comma in a number can only be a decimal one: it does not separate cells here."""
        return self.delimiter != ","

    def read(self, wanted: list[str], texts: set[str]) -> dict[str, Any]:
        """The wanted columns, typed by pyarrow; what holds neither numbers only nor is in `texts` is read again.

        So are whole numbers where a cell has leading zeros, as zip codes have: pyarrow drops the zeros.
        """
        with reading(self.path, "a CSV file"):
            with self.path.open("rb") as file:
                if any(b'"' in block for block in iter(lambda: file.read(1 << 20), b"")):
                    self._check_rows()  # pyarrow forgives what is behind a closing quote
            try:
                found = self._parse(wanted, texts)
                again = [n for n in wanted if n not in texts and not _is_fraction(found[n].type)]
                as_texts = self._parse(again, set(again)) if again else {}
            except Exception:
                self._check_rows()
                raise
            return found | {n: c for n, c in as_texts.items() if not is_number(found[n].type) or _is_padded(c)}

    def _parse(self, columns: list[str], texts: set[str]) -> dict[str, Any]:
        import pyarrow as pa
        import pyarrow.csv as arrow

        read = arrow.ReadOptions(use_threads=False, block_size=1 << 24, skip_rows=self.header, column_names=self.names)
        blank: Any = lambda row: "error" if row.text.strip() else "skip"  # noqa: E731
        parse = arrow.ParseOptions(delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=blank)
        types = dict.fromkeys(texts.intersection(columns), pa.dictionary(pa.int32(), pa.string()))
        convert = arrow.ConvertOptions(column_types=types, null_values=NULLS, include_columns=columns)
        found = arrow.read_csv(self.path, read, parse, convert)
        return dict(zip(found.column_names, found.itercolumns(), strict=True))

    def _check_rows(self) -> None:
        """Name the first line that is no row of the table."""
        for line, row in _rows(self.path, self.delimiter):
            if len(row) != len(self.names):
                expected = f"expected {len(self.names)} cells as in the first line"
                raise UserError(f"{self.path}, line {line}: {expected}, got {len(row)}")


def open_table(path: Path, *, named: bool = True) -> TableFile:
    """A table. In a CSV separators are , ; | or tabs, and text is UTF-8; unless `named`, its columns need no names."""
    if path.suffix.lower() in PARQUET:
        import pyarrow.parquet as pq

        with reading(path, "a Parquet file"):
            return TableFile(path, tuple(map(str, pq.read_schema(path).names)))
    with reading(path, "a CSV file in UTF-8") as size, path.open(encoding="utf-8-sig", newline="") as file:
        require_memory(6 * size, str(path))
        line = file.readline(LONGEST_LINE)
    if len(line) == LONGEST_LINE:
        raise UserError(f"{path}, line 1 is longer than a million characters: is it a CSV file?")
    delimiter = max(",;\t|", key=line.count)
    header, row = next(_rows(path, delimiter), (1, []))
    names = tuple(name.strip() for name in row)
    if names[1:] and not names[0]:  # the row numbers that pandas writes have no name
        names = (ROW_NUMBERS, *names[1:])
    if not any(names) or all(number(name) is not None for name in names):
        if not named and names:
            return CsvFile(path, tuple(str(i + 1) for i in range(len(names))), delimiter, 0)
        raise UserError(f"{path}, line 1: expected the names of the columns, got {line.strip()[:60]!r}")
    return CsvFile(path, names, delimiter, header)


def number(text: str) -> float | None:
    """The number that a text is, or None."""
    try:
        return float(text)
    except ValueError:
        return None


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with the number of the line that it ends on."""
    with reading(path, "a CSV file in UTF-8"), path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        yield from ((reader.line_num, row) for row in reader if len(row) > 1 or "".join(row).strip())


def is_number(kind: Any) -> bool:
    """Whether a type of pyarrow's is one of numbers; a column without any value might hold some."""
    import pyarrow.types as is_a

    return bool(is_a.is_integer(kind) or _is_fraction(kind))


def _is_fraction(kind: Any) -> bool:
    import pyarrow.types as is_a

    return bool(is_a.is_floating(kind) or is_a.is_decimal(kind) or is_a.is_null(kind))


def _is_padded(column: Any) -> bool:
    """Whether any of these texts is a whole number with leading zeros, as zip codes are."""
    import pyarrow.compute as pc

    return any(pc.any(pc.match_substring_regex(c.dictionary, PADDED)).as_py() for c in column.chunks)
