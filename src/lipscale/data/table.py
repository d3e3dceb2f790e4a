"""A table with named columns: numbers stay numbers, texts become categories, a cell that fits nowhere is named.

CSV and Parquet files both arrive here, as columns of pyarrow. A raw row is a row of float64: a number, the index of a
category, or NaN where the value is missing.
"""

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipscale.data.dataset import MOST_CLASSES, Column
from lipscale.data.memory import require_memory
from lipscale.errors import UserError

MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "-")
MOST_CATEGORIES = 100
MOST_COLUMNS = 20_000
LONGEST_TEXT = 1000
# texts among more different numbers than this are taken for typing errors, not for categories
SOME_NUMBERS = 10


@dataclass(frozen=True)
class Source:
    """A file of named columns."""

    path: Path
    names: tuple[str, ...]
    read: Callable[[list[str], set[str]], dict[str, Any]]  # the wanted columns of pyarrow, the second ones as texts
    place: Callable[[int], str]  # what people call a row: a line of a CSV, a row of a Parquet file

    def __post_init__(self) -> None:
        if len(self.names) > MOST_COLUMNS:
            raise UserError(
                f"{self.path} has {len(self.names)} columns; give at most {MOST_COLUMNS}, or an .npz file of numbers"
            )
        for i, name in enumerate(self.names):
            if not name:
                raise UserError(f"{self.path}: column {i + 1} has no name")
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise UserError(f"{self.path}: two columns are called {twice!r}")

    def check(self, name: str, what: str) -> str:
        """The column's name, or an error that names the nearest one."""
        if name in self.names:
            return name
        hint = _nearest(name, self.names[:1000]) or f"it has {shortened(self.names)}"
        raise UserError(f"{self.path} has no column {name!r} ({what}); {hint}")


@dataclass(frozen=True)
class Table:
    """Raw rows, their labels where the table has some, and what the columns and classes are."""

    rows: Tensor  # (N, columns), float64
    labels: Tensor | None
    columns: tuple[Column, ...]
    classes: tuple[str, ...]


def read_table(
    source: Source,
    *,
    label: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    columns: tuple[Column, ...] = (),
    classes: tuple[str, ...] = (),
) -> Table:
    """Read a table; with a run's `columns` and `classes` it is read as that run's was, whatever it looks like.

    Without them every column but the label and the dropped ones is an input. It holds numbers if all its cells do, and
    else categories; `categories` names columns that hold categories although they look like numbers.
    """
    left_out = {source.check(name, "`drop`") for name in drop}
    left_out |= set() if label is None else {source.check(label, "the label")}
    forced = {source.check(name, "a category") for name in categories}
    known = {column.name: column for column in columns}
    chosen = [source.check(name, "the run was trained with it") for name in known]
    chosen = chosen or [name for name in source.names if name not in left_out]
    if not chosen:
        raise UserError(f"{source.path} has no column but the label: there is nothing to learn from")
    asked = [*chosen, *([] if label is None else [label])]
    texts = {*forced, *asked[len(chosen) :], *(column.name for column in columns if column.categories)}
    found = source.read(list(dict.fromkeys(asked)), texts.intersection(asked))
    count = len(found[chosen[0]])
    if count == 0:
        raise UserError(f"{source.path} holds no row below its column names")
    require_memory(2 * 8 * count * len(chosen), f"{source.path} ({count} rows)")
    labels = None
    if label is not None:
        classes, labels = _Cells(source, label, found[label].combine_chunks()).as_labels(classes)
    rows = np.empty((count, len(chosen)))
    described = []
    for at, name in enumerate(chosen):
        cells = _Cells(source, name, found.pop(name).combine_chunks())  # what is copied need not stay
        column, rows[:, at] = cells.as_known(known[name]) if known else cells.as_new(forced=name in forced)
        described.append(column)
    return Table(torch.from_numpy(rows), labels, tuple(described), classes)


@dataclass(frozen=True)
class _Cells:
    """A column of a file: float64 with NaN for missing values, or texts in a dictionary."""

    source: Source
    name: str
    column: Any  # of pyarrow

    def as_new(self, *, forced: bool) -> tuple[Column, np.ndarray]:
        """Numbers where all cells are, and else categories; `forced` where the user says that they are categories."""
        numbers = None if forced else self._numbers()
        if numbers is not None:
            return Column(self.name), numbers
        codes, names = self._codes()
        if not forced:
            self._check_typing_errors(codes, names)
        if not names:
            raise UserError(f"column {self.name!r} of {self.source.path} is empty; leave it out (`drop`)")
        if len(names) > MOST_CATEGORIES:
            raise UserError(
                f"column {self.name!r} of {self.source.path} has more than {MOST_CATEGORIES} different texts, such as "
                f"{names[0][:40]!r}: leave it out (`drop`) or group its values"
            )
        return self._ordered(codes, names)

    def as_known(self, column: Column) -> tuple[Column, np.ndarray]:
        """The values of a run's column; a category that it has not seen is a missing one."""
        if column.categories:
            codes, names = self._codes()
            place = {name: float(i) for i, name in enumerate(column.categories)}
            return column, np.array([*(place.get(name, math.nan) for name in names), math.nan])[codes]
        numbers = self._numbers()
        if numbers is None:
            codes, names = self._codes()
            at = next(i for i, name in enumerate(names) if number(name) is None)
            raise UserError(
                f"{self._where(codes == at)}: column {self.name!r} expects a number, got {names[at][:40]!r}"
            )
        return column, numbers

    def as_labels(self, classes: tuple[str, ...]) -> tuple[tuple[str, ...], Tensor]:
        """The classes and each row's; those of a run that exists, or all that occur at least twice."""
        codes, names = self._codes()
        if (codes < 0).any():
            where = self._where(codes < 0)
            raise UserError(f"{where}: the label (column {self.name!r}) is missing; fill it in or remove the row")
        if not classes:
            self._check_classes(codes, names)
            column, values = self._ordered(codes, names)
            return column.categories, torch.from_numpy(values).long()
        place = {name: i for i, name in enumerate(classes)}
        for at, name in enumerate(names):
            if name not in place:
                hint = _nearest(name, classes) or f"known: {shortened(classes)}"
                raise UserError(f"{self._where(codes == at)}: unknown label {name[:40]!r}; {hint}")
        return classes, torch.tensor([place[name] for name in names])[torch.from_numpy(codes)]

    def _check_classes(self, codes: np.ndarray, names: list[str]) -> None:
        """Classes are few, and each occurs at least twice."""
        if len(names) > MOST_CLASSES:
            raise UserError(
                f"{self.source.path}: the label column {self.name!r} has more than {MOST_CLASSES} different values; "
                "lipscale learns classes, not numbers: give another `label` or group the values"
            )
        counts = np.bincount(codes)
        if len(names) > 1 and (counts == 1).any():
            at = int((counts == 1).argmax())
            others = [name for name, count in zip(names, counts, strict=True) if count > 1]
            hint = _nearest(names[at], others) or "give more samples of it or remove the row"
            raise UserError(f"{self._where(codes == at)}: label {names[at][:40]!r} occurs only once; {hint}")

    def _where(self, rows: np.ndarray) -> str:
        """The place of the first of these rows, for a message."""
        return f"{self.source.path}, {self.source.place(int(rows.argmax()))}"

    def _numbers(self) -> np.ndarray | None:
        """The column as numbers, or None where a cell is none."""
        import pyarrow as pa

        if pa.types.is_dictionary(self.column.type):
            codes, names = self._codes()
            values = [number(name) for name in names]
            if None in values:
                return None
            numbers = np.array([*values, math.nan], np.float64)[codes]
        else:
            numbers = np.array(self.column.to_numpy(zero_copy_only=False))  # what is null becomes NaN
        if np.isinf(numbers).any():
            raise UserError(f"{self._where(np.isinf(numbers))}: column {self.name!r} holds an infinite value")
        return numbers

    def _codes(self) -> tuple[np.ndarray, list[str]]:
        """Which text each cell is, -1 where it is missing, and the texts in the order in which they come."""
        import pyarrow as pa

        encoded = self.column if pa.types.is_dictionary(self.column.type) else self.column.dictionary_encode()
        places: dict[str, int] = {}
        new = [
            -1 if text.lower() in MISSING else places.setdefault(text, len(places))
            for text in map(_text, encoded.dictionary.to_pylist())
        ]
        codes = np.array([*new, -1])[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        for name, at in places.items():
            if len(name) > LONGEST_TEXT:
                raise UserError(
                    f"{self._where(codes == at)}: column {self.name!r} holds a text of {len(name)} characters; "
                    f"categories and classes have at most {LONGEST_TEXT}: leave it out (`drop`)"
                )
        return codes, list(places)

    def _check_typing_errors(self, codes: np.ndarray, names: list[str]) -> None:
        """A few texts among many different numbers are typing errors and no categories."""
        texts = [at for at, name in enumerate(names) if number(name) is None]
        numbers = len(names) - len(texts)
        if texts and numbers > SOME_NUMBERS and numbers >= 9 * len(texts):
            where, text = self._where(codes == texts[0]), names[texts[0]]
            raise UserError(
                f"{where}: column {self.name!r} holds numbers but here {text[:40]!r}; mend it, leave it empty, or name "
                "the column in `categories` if these are categories"
            )

    def _ordered(self, codes: np.ndarray, names: list[str]) -> tuple[Column, np.ndarray]:
        """Categories in order, numbers by size and other names by the alphabet, and the place of each cell."""
        numbers = [number(name) for name in names]
        if all(number is not None and math.isfinite(number) for number in numbers):
            ordered = tuple(name for _, name in sorted(zip(numbers, names, strict=True)))
        else:
            ordered = tuple(sorted(names))
        place = {name: float(i) for i, name in enumerate(ordered)}
        return Column(self.name, ordered), np.array([*(place[name] for name in names), math.nan])[codes]


def _text(cell: Any) -> str:
    """A cell as text; a number from a typed file without a needless .0."""
    if isinstance(cell, float):
        whole = cell.is_integer() and abs(cell) < 1e15
        return "" if math.isnan(cell) else f"{cell:.0f}" if whole else repr(cell)
    return str(cell).strip()


def number(text: str) -> float | None:
    """The number that a text is, or None."""
    try:
        return float(text)
    except ValueError:
        return None


def _nearest(name: str, names: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else ""


def shortened(names: Sequence[str], most: int = 12) -> str:
    """Names for a message; of many only the first."""
    shown = ", ".join(str(name)[:40] for name in names[:most])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > most else shown
