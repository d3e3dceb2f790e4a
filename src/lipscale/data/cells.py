"""One column of a table: numbers, dates or categories; a cell that fits nowhere is named."""

import math
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from lipscale.data import dates
from lipscale.data.dataset import MOST_CLASSES, Column, hint
from lipscale.data.ids import LEAST_ROWS, is_id
from lipscale.data.table_file import MISSING, PADDED, TableFile, is_number, number
from lipscale.errors import UserError

MOST_CATEGORIES = 100
OTHER, LEAST_OF_A_CATEGORY = "(other)", 5  # where there are more, what all rare ones become; cells that are not rare
UNSEEN = -1.0  # in place of a category's index
LONGEST_TEXT = 1000
# texts among more different numbers or dates than this are taken for typing errors, not for categories
SOME = 10
# a label of more different numbers than this is a quantity where they are fractions, or hardly ever occur again
MANY_NUMBERS = 20
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?", re.ASCII)
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}", re.ASCII)
DROP = "leave it out (`drop`)"
MEND = "mend it or leave it empty"


class ColumnError(UserError):
    """A column that cannot be read: what is wrong, where, and the way out."""

    def __init__(self, source: TableFile, name: str, problem: str, way_out: str, *, row: int | None = None) -> None:
        place = "" if row is None else source.place(row)
        self.name, self.problem = name, f"{name!r} {problem}{f' ({place})' if place else ''}"
        where = f"{source.path}, {place}" if place else str(source.path)
        super().__init__(f"{where}: column {name!r} {problem}; {way_out}")


class Cells:
    """A column of a file: float64 with NaN for missing values, or texts in a dictionary."""

    def __init__(self, source: TableFile, name: str, column: Any, *, as_text: bool = False) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self.source, self.name = source, name
        coded = pa.types.is_dictionary(column.type)
        kind = column.type.value_type if coded else column.type
        self.is_number, self.is_date = is_number(kind), dates.is_date(kind) and not as_text
        plain = column.cast(kind) if coded and not pa.types.is_string(kind) else column
        if self.is_number:
            column = plain.cast(pa.float64(), safe=False)
        elif dates.is_date(kind):
            column = dates.days_of(plain) if self.is_date else plain.cast(pa.string())
        elif pa.types.is_boolean(kind):
            column = pc.if_else(plain, "True", "False")
        elif str(kind) == "string_view":  # as polars has them
            column = plain.cast(pa.large_string())
        elif kind not in (pa.string(), pa.large_string()):
            raise self._error(f"holds {kind}, no numbers, dates or text", f"convert it or {DROP}")
        self.column = column.combine_chunks()

    def as_known(self, known: Column) -> np.ndarray:
        """As a run knew the column; a category that it has not seen is UNSEEN, or one of the others."""
        if known.categories:
            found = self._values(known.categories, range(len(known.categories)))
            unseen = len(known.categories) - 1.0 if known.other else UNSEEN
            return np.where(np.isnan(found) & (self._codes[0] >= 0), unseen, found)
        if known.dates:
            return self._floats() if self.is_date else self._all(self._days(known.dates), "dates", MEND)
        return self._finite(self._floats() if self.is_number else self._all(self._parsed, "numbers", MEND))

    def as_new(self, *, category: bool = False, numeric: bool = False) -> tuple[Column, np.ndarray] | None:
        """What the column is and its values; None where it only tells rows apart.

        Args:
            category: It holds categories, whatever it looks like.
            numeric: It holds numbers, though they may look like ids or codes.
        """
        if not category:
            if self.is_date or self.is_number or numeric:
                return self._as_numbers(numeric)
            for kind, found in (("numbers", self._parsed), ("dates", self._days(self.form))):
                if kind == "numbers" and self.is_padded:
                    continue
                fits, others = int(np.isfinite(found).sum()), int(np.isnan(found).sum())
                if fits and not others:
                    return self._as_numbers(False)
                if fits > SOME and fits >= 9 * others:  # typing errors
                    self._all(found, kind, f"{MEND}, or name the column in `categories`")
        return self._as_categories(category)

    def as_labels(self, classes: tuple[str, ...]) -> tuple[tuple[str, ...], np.ndarray]:
        """The classes and each row's; those of a run that exists, or all that occur at least twice."""
        codes, names = self._codes
        if (codes < 0).any():
            raise self._error("lacks the label", "fill it in or remove the row", codes < 0)
        if not classes:
            self._require_classes(codes, names)
        counts = np.bincount(codes)
        allowed = classes or [name for name, count in zip(names, counts, strict=True) if count > 1]
        for at, name in enumerate(names):
            if name not in allowed:
                label = f"unknown label {name[:40]!r}" if classes else f"label {name[:40]!r}, which occurs only once"
                way_out = hint(name, allowed, "" if classes else "give more samples of it or remove the row")
                raise self._error(f"has the {label}", way_out, codes == at)
        classes = classes or _ordered(names)
        return classes, self._values(classes, range(len(classes)))

    @cached_property
    def form(self) -> str:
        """The form of its dates, if most of its texts are dates."""
        return dates.ISO if self.is_date else dates.form_of(self._codes[1])

    @cached_property
    def is_padded(self) -> bool:
        """Whether there are leading zeros, as in zip codes: then they are no numbers to count with."""
        return not (self.is_number or self.is_date) and any(re.match(PADDED, text) for text in self._codes[1])

    @property
    def is_ambiguous(self) -> bool:
        """Whether day and month of its dates could be exchanged."""
        return not self.is_date and dates.is_ambiguous(self._codes[1], self.form)

    def _as_numbers(self, numeric: bool) -> tuple[Column, np.ndarray] | None:
        is_date = self.is_date or (not self.is_number and not numeric and np.isnan(self._parsed).any())
        found = Column(self.name, dates=self.form if is_date else "")
        values = self.as_known(found)
        if np.isnan(values).all():
            raise self._error("is empty", DROP)
        return None if not is_date and not numeric and is_id(self.name, values) else (found, values)

    def _as_categories(self, forced: bool) -> tuple[Column, np.ndarray] | None:
        _, names = self._codes
        if not names:
            raise self._error("is empty", DROP)
        if not forced and len(names) == len(self.column) >= LEAST_ROWS:
            return None
        if len(names) > MOST_CATEGORIES:
            found = Column(self.name, (*_ordered(self._common()), OTHER), other=True)
        else:
            found = Column(self.name, _ordered(names))
        return found, self.as_known(found)

    def _common(self) -> list[str]:
        """The categories that stay where there are too many: the commonest, as far as they occur again and again."""
        codes, names = self._codes
        counts = np.bincount(codes[codes >= 0])
        common = [i for i in np.argsort(-counts, kind="stable") if counts[i] >= LEAST_OF_A_CATEGORY]
        if not common:
            kind = "codes with leading zeros" if self.is_padded else "texts"
            problem = f"has {len(names)} different {kind}, none of which occurs {LEAST_OF_A_CATEGORY} times"
            raise self._error(problem, DROP)
        return [names[i] for i in common if names[i] != OTHER][: MOST_CATEGORIES - 1]

    def _require_classes(self, codes: np.ndarray, names: Sequence[str]) -> None:
        """Refuse a label that is a quantity, and more or fewer classes than can be learned."""
        values = np.array([math.nan if (value := number(name)) is None else value for name in names])
        whole = (values == np.floor(values)).all()
        rare = not whole or len(codes) < 5 * len(names)
        if len(names) > MANY_NUMBERS and np.isfinite(values).all() and (rare or len(names) > MOST_CLASSES):
            span = f"{len(names)} different numbers, {values.min():g} to {values.max():g}"
            median = f"{np.median(values[codes]):g}"
            problem = f"{self.source.path}: the label column {self.name!r} is a quantity ({span}), and lipscale learns "
            way_out = f"make classes of it, such as up to {median} and above, or give another `label`"
            raise UserError(f"{problem}2 to {MOST_CLASSES} classes: {way_out}")
        if not 2 <= len(names) <= MOST_CLASSES:
            raise UserError(
                f"{self.source.path}: the label column {self.name!r} has {len(names)} different values, and lipscale "
                f"learns 2 to {MOST_CLASSES} classes: give another `label` or group the values"
            )

    def _error(self, problem: str, way_out: str, rows: np.ndarray | None = None) -> ColumnError:
        """What is wrong with the column, or with the first of these rows."""
        row = None if rows is None else int(rows.argmax())
        return ColumnError(self.source, self.name, problem, way_out, row=row)

    def _floats(self) -> np.ndarray:
        return np.array(self.column.to_numpy(zero_copy_only=False))  # what is null becomes NaN

    def _finite(self, numbers: np.ndarray) -> np.ndarray:
        if np.isinf(numbers).any():
            raise self._error("holds an infinite value", MEND, np.isinf(numbers))
        return numbers

    def _all(self, values: np.ndarray, kind: str, way_out: str) -> np.ndarray:
        """The value of each cell, where each text has one; the first that has none is named."""
        codes, names = self._codes
        if np.isnan(values).any():
            first = int(np.isnan(values).argmax())
            raise self._error(f"holds {kind} but here {names[first][:40]!r}", way_out, codes == first)
        return self._values(names, values.tolist())

    def _days(self, form: str) -> np.ndarray:
        """The day of each text, in this form or in ISO's; NaN where it is none."""
        texts = self._codes[1]
        if not form:
            return np.full(len(texts), math.nan)
        found = dates.parse_dates(texts, form)
        return np.where(np.isnan(found), dates.parse_dates(texts, dates.ISO), found) if form != dates.ISO else found

    @cached_property
    def _parsed(self) -> np.ndarray:
        """The number of each text, NaN where it is none; decimal commas are welcome where they cannot be others."""
        texts = self._codes[1]
        commas = [text for text in texts if DECIMAL_COMMA.fullmatch(text)]
        wanted = set(commas)
        found = [number(text.replace(",", ".") if text in wanted else text) for text in texts]
        unclear = commas and not self.source.has_decimal_commas and all(map(THOUSANDS.fullmatch, commas))
        if unclear and None not in found:
            problem = f"holds numbers such as {commas[0]!r}: thousands or decimals?"
            raise self._error(problem, f"write {commas[0].replace(',', '')} or {commas[0].replace(',', '.')}")
        return np.array([math.nan if value is None else value for value in found])

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
            problem = f"holds a text of {len(longest)} characters, of at most {LONGEST_TEXT}"
            raise self._error(problem, DROP, codes == places[longest])
        return codes, list(places)

    def _values(self, texts: Sequence[str], values: Iterable[float]) -> np.ndarray:
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
