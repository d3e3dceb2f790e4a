"""A table with named columns: numbers stay numbers, texts become categories, a cell that fits nowhere is named.

A raw row is a row of float64: a number, the index of a category, or NaN where the value is missing.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from lipscale.data.dataset import MOST_CLASSES, Column, Samples, hint
from lipscale.data.memory import reading, require_memory
from lipscale.data.table_file import MISSING, TableFile, is_number, number
from lipscale.errors import UserError
from lipscale.settings import DataSettings

MOST_CATEGORIES = 100
LONGEST_TEXT = 1000
# texts among more different numbers than this are taken for typing errors, not for categories
SOME_NUMBERS = 10


def read_table(
    source: TableFile, settings: DataSettings, *, columns: tuple[Column, ...] = (), classes: tuple[str, ...] = ()
) -> tuple[Samples, tuple[Column, ...], tuple[str, ...]]:
    """Samples, columns and classes; with those of a run the table is read as that run's was, whatever it looks like.

    Without them every column but the label and the dropped ones is an input. It holds numbers if all its cells do, and
    else categories; `categories` names columns that hold categories although they look like numbers.
    """
    label = [] if settings.label is None else [settings.label]
    known = {column.name: column for column in columns}
    drop, forced = ((), ()) if known else (settings.drop, settings.categories)
    for names, what in ((label, "the label"), (drop, "`drop`"), (forced, "a category"), (known, "the run's column")):
        source.require(names, what)
    chosen = [*known] or [name for name in source.names if name not in (*label, *drop)]
    if not chosen:
        raise UserError(f"{source.path} has no column but the label: there is nothing to learn from")
    texts = {*label, *forced, *(name for name in known if known[name].categories)}
    found = source.read([*dict.fromkeys(chosen + label)], texts)
    count = len(found[chosen[0]])
    with reading(source.path, "a table"):  # a damaged Parquet file may show only here
        cells = {name: _Cells(source, name, found.pop(name)) for name in [*found]}  # what is copied need not stay
    if count == 0:
        raise UserError(f"{source.path} holds no row below its column names")
    require_memory(2 * 8 * count * len(chosen), f"{source.path} ({count} rows)")
    targets = np.empty(0)
    if settings.label is not None:
        classes, targets = cells[settings.label].as_labels(classes)
    rows = np.empty((count, len(chosen)))
    described = []
    for at, name in enumerate(chosen):
        column, rows[:, at] = cells.pop(name).as_column(known.get(name), forced=name in forced)
        described.append(column)
    return Samples(torch.from_numpy(rows), torch.from_numpy(targets).long()), tuple(described), classes


class _Cells:
    """A column of a file: float64 with NaN for missing values, or texts in a dictionary."""

    def __init__(self, source: TableFile, name: str, column: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self.source, self.name = source, name
        coded = pa.types.is_dictionary(column.type)
        kind = column.type.value_type if coded else column.type
        self.is_number = is_number(kind)
        if self.is_number:
            column = (column.cast(kind) if coded else column).cast(pa.float64(), safe=False)
        elif pa.types.is_boolean(kind):
            column = pc.if_else(column, "True", "False")
        elif kind not in (pa.string(), pa.large_string()):
            problem = f"holds {kind}, no numbers or text; convert it or leave it out (`drop`)"
            raise UserError(f"{source.path}: column {name!r} {problem}")
        self.column = column.combine_chunks()

    def as_column(self, known: Column | None, *, forced: bool) -> tuple[Column, np.ndarray]:
        """Numbers where all cells are, and else categories; as a run knew them, or `forced` to be categories.

        A category that a run has not seen is a missing one.
        """
        if known and known.categories:
            return known, self._values(known.categories, range(len(known.categories)))
        if not forced and (numbers := self._numbers()) is not None:
            return Column(self.name), numbers
        codes, names = self._codes
        others = [at for at, name in enumerate(names) if number(name) is None]
        numeric = len(names) - len(others)
        typing_errors = others and numeric > SOME_NUMBERS and numeric >= 9 * len(others)
        if not forced and (known or typing_errors):
            way_out = "mend it or leave it empty" + ("" if known else ", or name the column in `categories`")
            raise self._error(codes == others[0], f"holds numbers but here {names[others[0]][:40]!r}; {way_out}")
        if not 0 < len(names) <= MOST_CATEGORIES:
            problem = f"has more than {MOST_CATEGORIES} different texts" if names else "is empty"
            raise UserError(f"column {self.name!r} of {self.source.path} {problem}: leave it out (`drop`)")
        categories = _ordered(names)
        return Column(self.name, categories), self._values(categories, range(len(categories)))

    def as_labels(self, classes: tuple[str, ...]) -> tuple[tuple[str, ...], np.ndarray]:
        """The classes and each row's; those of a run that exists, or all that occur at least twice."""
        codes, names = self._codes
        if (codes < 0).any():
            raise self._error(codes < 0, "lacks the label; fill it in or remove the row")
        if not classes and not 2 <= len(names) <= MOST_CLASSES:
            raise UserError(
                f"{self.source.path}: the label column {self.name!r} has {len(names)} different values, and lipscale "
                f"learns 2 to {MOST_CLASSES} classes: give another `label` or group the values"
            )
        counts = np.bincount(codes)
        allowed = classes or [name for name, count in zip(names, counts, strict=True) if count > 1]
        for at, name in enumerate(names):
            if name not in allowed:
                label = f"unknown label {name[:40]!r}" if classes else f"label {name[:40]!r}, which occurs only once"
                way_out = hint(name, allowed, "" if classes else "give more samples of it or remove the row")
                raise self._error(codes == at, f"has the {label}; {way_out}")
        classes = classes or _ordered(names)
        return classes, self._values(classes, range(len(classes)))

    def _error(self, rows: np.ndarray, problem: str) -> UserError:
        """What is wrong with the first of these rows, and where that is."""
        place = self.source.place(int(rows.argmax()))
        return UserError(f"{self.source.path}, {place}: column {self.name!r} {problem}")

    def _numbers(self) -> np.ndarray | None:
        """The column as numbers, or None where a cell is none."""
        if not self.is_number:
            values = [number(name) for name in self._codes[1]]
            if None in values:
                return None
            numbers = self._values(self._codes[1], values)
        else:
            numbers = np.array(self.column.to_numpy(zero_copy_only=False))  # what is null becomes NaN
        if np.isinf(numbers).any():
            raise self._error(np.isinf(numbers), "holds an infinite value")
        return numbers

    @cached_property
    def _codes(self) -> tuple[np.ndarray, list[str]]:
        """Which text each cell is, -1 where it is missing, and the texts in the order in which they come."""
        encoded = self.column.dictionary_encode()  # as it is, where it has a dictionary
        places: dict[str, int] = {}
        new = [
            -1 if text.lower() in MISSING else places.setdefault(text, len(places))
            for text in map(_text, encoded.dictionary.to_pylist())
        ]
        codes = np.array([*new, -1])[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        longest = max(places, key=len, default="")
        if len(longest) > LONGEST_TEXT:
            problem = f"holds a text of {len(longest)} characters, of at most {LONGEST_TEXT}: leave it out (`drop`)"
            raise self._error(codes == places[longest], problem)
        return codes, list(places)

    def _values(self, texts: Sequence[str], values: Iterable[float | None]) -> np.ndarray:
        """The value of each cell where these texts have these values; NaN for any other, and for what is missing."""
        value_of = dict(zip(texts, values, strict=True))
        codes, names = self._codes
        return np.array([*(value_of.get(name) for name in names), None], np.float64)[codes]


def _ordered(names: Sequence[str]) -> tuple[str, ...]:
    """Numbers by size, other names by the alphabet."""
    numbers = [number(name) for name in names]
    if any(value is None or not math.isfinite(value) for value in numbers):
        return tuple(sorted(names))
    return tuple(name for _, name in sorted(zip(numbers, names, strict=True)))


def _text(cell: Any) -> str:
    """A cell as text; a number from a typed file without a needless .0."""
    if isinstance(cell, float):
        whole = cell.is_integer() and abs(cell) < 1e15
        return "" if math.isnan(cell) else f"{cell:.0f}" if whole else repr(cell)
    return str(cell).strip()
