"""A CSV file as chunks of columns, by the standard library: it is streamed, and every row knows its line."""

import csv
from collections.abc import Generator, Iterator
from pathlib import Path

from lipscale.data.table import Chunk, Source, shortened
from lipscale.errors import UserError

ROWS = 8192
DELIMITERS = ",;\t|"
LONGEST_LINE = 1 << 20


def open_csv(path: Path) -> Source:
    """The file's column names, and its rows when they are asked for. Separators are , ; | or tabs; text is UTF-8."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            line = file.readline(LONGEST_LINE)
        if len(line) == LONGEST_LINE:
            raise UserError(f"{path}, line 1 is longer than a million characters: is it a CSV file?")
        delimiter = max(DELIMITERS, key=line.count)
        reader = _reader(path, delimiter)
        names = tuple(name.strip() for name in next(reader, (0, []))[1])
        reader.close()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise _no_csv(path, error) from error
    _check_names(path, names)
    return Source(path, names, lambda _: _chunks(path, delimiter, len(names)))


def _check_names(path: Path, names: tuple[str, ...]) -> None:
    if not any(names):
        raise UserError(f"{path}, line 1: expected the names of the columns, got an empty line")
    if all(_is_number(name) for name in names):
        raise UserError(f"{path}, line 1 holds numbers ({shortened(names)}); its first line must name the columns")
    for i, name in enumerate(names):
        if not name:
            raise UserError(f"{path}, line 1: column {i + 1} has no name")
        if name in names[:i]:
            raise UserError(f"{path}, line 1: two columns are called {name!r}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _reader(path: Path, delimiter: str) -> Generator[tuple[int, list[str]], None, None]:
    """Rows that are not blank, each with the number of the line that it ends on."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        for row in reader:
            if row and (len(row) > 1 or row[0].strip()):
                yield reader.line_num, row


def _chunks(path: Path, delimiter: str, width: int) -> Iterator[Chunk]:
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        reader = _reader(path, delimiter)
        next(reader, None)
        for line, row in reader:
            if len(row) != width:
                raise UserError(f"{path}, line {line}: expected {width} cells as in the first line, got {len(row)}")
            rows.append(row)
            lines.append(line)
            if len(rows) == ROWS:
                yield Chunk(list(zip(*rows, strict=True)), lines)
                rows, lines = [], []
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise _no_csv(path, error) from error
    if rows:
        yield Chunk(list(zip(*rows, strict=True)), lines)


def _no_csv(path: Path, error: Exception) -> UserError:
    if isinstance(error, UnicodeDecodeError):
        return UserError(f"{path} is no UTF-8 text (byte {error.object[error.start]:#04x}); save it as CSV in UTF-8")
    return UserError(f"{path} is no CSV file ({error}); check its quotes")
