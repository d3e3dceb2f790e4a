"""A table with named columns: numbers stay numbers, texts become categories, a cell that fits nowhere is named.

CSV and Parquet files both arrive here, as chunks of columns. A raw row is a row of float64: a number, the index of a
category, or NaN where the value is missing.
"""

import difflib
import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipscale.data.dataset import Column
from lipscale.data.memory import require_memory
from lipscale.errors import UserError

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?", "-"))
MOST_CATEGORIES = 100
MOST_CLASSES = 1000
# texts among at least so many different numbers are taken for typing errors, not for categories
SOME_NUMBERS = 10

Cells = Sequence[str] | np.ndarray  # texts ("" where missing), or float64 (NaN where missing)


@dataclass(frozen=True)
class Chunk:
    """Some rows, column by column, and where each row stands in the file."""

    columns: list[Cells]
    places: Sequence[int]


@dataclass(frozen=True)
class Source:
    """A file of named columns that can be read from the start as often as needed."""

    path: Path
    names: tuple[str, ...]
    chunks: Callable[[Set[int]], Iterator[Chunk]]  # of the wanted columns; others may be empty
    place: str = "line"  # what a place is called: a line of a CSV, a row of a Parquet file

    def position(self, name: str, what: str) -> int:
        """Where a column is, or an error that names the nearest one."""
        if name in self.names:
            return self.names.index(name)
        nearest = difflib.get_close_matches(name, self.names, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"it has {shortened(self.names)}"
        raise UserError(f"{self.path} has no column {name!r} ({what}); {hint}")


@dataclass(frozen=True)
class Table:
    """Raw rows, their labels where the table has some, and what the columns and classes are."""

    rows: Tensor  # (N, columns), float64
    labels: Tensor | None
    columns: tuple[Column, ...]
    classes: tuple[str, ...]


class _NotNumbers(Exception):
    """Columns that were taken for numbers hold text."""

    def __init__(self, positions: set[int]) -> None:
        self.positions = positions


def read_table(
    source: Source,
    *,
    label: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    columns: tuple[Column, ...] = (),
    classes: tuple[str, ...] = (),
) -> Table:
    """Read a table; with a run's `columns` and `classes` it is read as that run's own was, whatever it looks like.

    Without them every column but the label and the dropped ones is an input. It holds numbers if all its cells do, and
    else categories; `categories` names columns that hold categories although they look like numbers.
    """
    label_at = None if label is None else source.position(label, "the label")
    chosen = _known_columns(source, columns) if columns else _own_columns(source, label, drop)
    forced = {source.position(name, "a category") for name in categories}
    texts = set(forced)
    if columns:
        texts |= {i for i, column in zip(chosen, columns, strict=True) if column.categories}
    while True:
        builder = _Builder(source, chosen, label_at, texts, columns, classes, forced)
        try:
            return builder.read()
        except _NotNumbers as found:  # start again: what came before as numbers is wanted as text
            texts = texts | found.positions


def _known_columns(source: Source, columns: tuple[Column, ...]) -> list[int]:
    return [source.position(column.name, "the run was trained with it") for column in columns]


def _own_columns(source: Source, label: str | None, drop: Sequence[str]) -> list[int]:
    left_out = {source.position(name, "--drop") for name in drop}
    if label is not None:
        left_out.add(source.position(label, "the label"))
    chosen = [i for i in range(len(source.names)) if i not in left_out]
    if not chosen:
        raise UserError(f"{source.path} has no column but the label: there is nothing to learn from")
    return chosen


@dataclass
class _Builder:
    """One pass over a table."""

    source: Source
    chosen: list[int]
    label_at: int | None
    texts: set[int]
    columns: tuple[Column, ...]
    classes: tuple[str, ...]
    forced: Set[int]  # categories by the user's word
    codes: dict[int, dict[str, int]] = field(default_factory=dict)  # of each text column: text -> code
    first_seen: dict[int, dict[str, int]] = field(default_factory=dict)  # ... and where it first stood
    label_codes: dict[str, int] = field(default_factory=dict)
    label_counts: dict[str, int] = field(default_factory=dict)
    label_seen: dict[str, int] = field(default_factory=dict)

    def read(self) -> Table:
        for i, column in zip(self.chosen, self.columns, strict=True) if self.columns else ():
            self.codes[i] = {name: code for code, name in enumerate(column.categories)}
        self.label_codes = {name: code for code, name in enumerate(self.classes)}
        rows, labels, count = [], [], 0
        wanted = {*self.chosen, *(() if self.label_at is None else (self.label_at,))}
        for chunk in self.source.chunks(wanted):
            count += len(chunk.places)
            require_memory(2 * 8 * count * len(self.chosen), f"{self.source.path} (more than {count} rows)")
            rows.append(np.stack([self._cells(chunk, i) for i in self.chosen], axis=1))
            if self.label_at is not None:
                labels.append(self._labels(chunk))
        if count == 0:
            raise UserError(f"{self.source.path} holds no row below its column names")
        if not self.columns:
            self._check_categories()
        table = torch.from_numpy(np.concatenate(rows))
        del rows
        columns, classes = self.columns, self.classes
        if not columns:
            columns = tuple(self._column(i, table[:, at]) for at, i in enumerate(self.chosen))
        found = torch.from_numpy(np.concatenate(labels)) if labels else None
        if found is not None and not classes:
            classes = self._sort_classes(found)
        return Table(table, found, columns, classes)

    def _cells(self, chunk: Chunk, i: int) -> np.ndarray:
        cells = chunk.columns[i]
        if i in self.texts:
            return self._codes(cells, i, chunk.places)
        numbers = cells if isinstance(cells, np.ndarray) else self._numbers(chunk, i)
        if np.isinf(numbers).any():
            at = int(np.isinf(numbers).argmax())
            raise UserError(f"{self._where(chunk.places[at])}: column {self.source.names[i]!r} holds an infinite value")
        return numbers

    def _numbers(self, chunk: Chunk, i: int) -> np.ndarray:
        cells = chunk.columns[i]
        try:
            return np.array(list(map(float, cells)))
        except ValueError:
            numbers = [_number(cell) for cell in cells]
        if None not in numbers:
            return np.array(numbers, dtype=np.float64)
        if self.columns:
            at = numbers.index(None)
            raise UserError(
                f"{self._where(chunk.places[at])}: column {self.source.names[i]!r} expects a number, got {cells[at]!r}"
            )
        # look at all columns of the chunk now: each discovery means to start again
        others = (j for j in self.chosen if j not in self.texts and not isinstance(chunk.columns[j], np.ndarray))
        raise _NotNumbers({j for j in others if any(_number(cell) is None for cell in chunk.columns[j])})

    def _codes(self, cells: Cells, i: int, places: Sequence[int]) -> np.ndarray:
        codes = self.codes.setdefault(i, {})
        seen = self.first_seen.setdefault(i, {})
        result = np.full(len(cells), np.nan)
        for at, cell in enumerate(cells):
            text = _text(cell)
            if text.lower() in MISSING:
                continue
            code = codes.get(text)
            if code is None and not self.columns:
                codes[text] = code = len(codes)
                seen[text] = places[at]
                if len(codes) > MOST_CATEGORIES:
                    self._too_many(i)
            if code is not None:  # what the run has not seen is no category
                result[at] = code
        return result

    def _too_many(self, i: int) -> None:
        self._check_typing_error(i)
        name = self.source.names[i]
        raise UserError(
            f"column {name!r} of {self.source.path} has more than {MOST_CATEGORIES} different texts, such as "
            f"{next(iter(self.codes[i]))[:40]!r}: leave it out (--drop {name}) or group its values"
        )

    def _check_categories(self) -> None:
        for i in self.texts & set(self.codes):
            self._check_typing_error(i)

    def _check_typing_error(self, i: int) -> None:
        """A few texts among many different numbers are a slip of the pen and no category."""
        if i in self.forced:
            return
        texts = [text for text in self.codes[i] if _number(text) is None]
        numbers = len(self.codes[i]) - len(texts)
        if texts and numbers > SOME_NUMBERS and numbers >= 9 * len(texts):
            where, name = self._where(self.first_seen[i][texts[0]]), self.source.names[i]
            raise UserError(
                f"{where}: column {name!r} holds numbers but here {texts[0][:40]!r}; mend it, leave it empty, or "
                f"say --categories {name} if these are categories"
            )

    def _labels(self, chunk: Chunk) -> np.ndarray:
        assert self.label_at is not None
        cells, codes = chunk.columns[self.label_at], self.label_codes
        result = np.empty(len(cells), np.int64)
        for at, cell in enumerate(cells):
            text = _text(cell)
            code = codes.get(text)
            if code is None:
                code = self._new_label(text, chunk.places[at])
            result[at] = code
            if not self.classes:
                self.label_counts[text] += 1
        return result

    def _new_label(self, text: str, place: int) -> int:
        name = self.source.names[self.label_at or 0]
        if text.lower() in MISSING:
            raise UserError(
                f"{self._where(place)}: the label (column {name!r}) is missing; fill it in or remove the row"
            )
        if self.classes:
            nearest = difflib.get_close_matches(text, self.classes, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {shortened(self.classes)}"
            raise UserError(f"{self._where(place)}: unknown label {text[:40]!r}; {hint}")
        if len(self.label_codes) == MOST_CLASSES:
            raise UserError(
                f"{self.source.path}: the label column {name!r} has more than {MOST_CLASSES} different values; "
                "lipscale learns classes, not numbers: give another --label or group the values"
            )
        self.label_codes[text] = len(self.label_codes)
        self.label_counts[text], self.label_seen[text] = 0, place
        return self.label_codes[text]

    def _sort_classes(self, labels: Tensor) -> tuple[str, ...]:
        """Class names in order, numbers by size; the labels follow (in place)."""
        names = list(self.label_codes)
        once = [name for name in names if self.label_counts[name] == 1]
        if once and len(names) > 1:
            others = [name for name in names if self.label_counts[name] > 1]
            nearest = difflib.get_close_matches(once[0], others, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else "give more samples of it or remove the row"
            raise UserError(f"{self._where(self.label_seen[once[0]])}: label {once[0][:40]!r} occurs only once; {hint}")
        ordered = _in_order(names)
        new = torch.tensor([ordered.index(name) for name in names])
        labels.copy_(new[labels])
        return ordered

    def _column(self, i: int, values: Tensor) -> Column:
        name = self.source.names[i]
        if i not in self.texts:
            return Column(name)
        names = list(self.codes[i])
        if not names:
            raise UserError(f"column {name!r} of {self.source.path} is empty; leave it out (--drop {name})")
        ordered = _in_order(names)
        new = torch.tensor([float(ordered.index(text)) for text in names], dtype=torch.float64)
        known = ~values.isnan()
        values[known] = new[values[known].long()]
        return Column(name, ordered)

    def _where(self, place: int) -> str:
        return f"{self.source.path}, {self.source.place} {place}"


def _text(cell: object) -> str:
    """A cell as text; a number from a typed file without a needless .0."""
    if isinstance(cell, float):
        return (
            "" if math.isnan(cell) else f"{cell:.0f}" if cell.is_integer() and abs(cell) < 1e15 else repr(float(cell))
        )
    return str(cell).strip()


def _number(cell: str) -> float | None:
    if cell.strip().lower() in MISSING:
        return math.nan
    try:
        return float(cell)
    except ValueError:
        return None


def _in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Numbers by size, other names by the alphabet."""
    numbers = [_number(name) for name in names]
    if all(number is not None and math.isfinite(number) for number in numbers):
        return tuple(name for _, name in sorted(zip(numbers, names, strict=True)))
    return tuple(sorted(names))


def shortened(names: Sequence[str], most: int = 12) -> str:
    """Names for a message; of many only the first."""
    shown = ", ".join(str(name)[:40] for name in names[:most])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > most else shown
