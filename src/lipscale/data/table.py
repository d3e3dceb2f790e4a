"""A table with named columns -> raw rows, whatever its columns hold.

A raw row is a row of float64: a number, the day of a date, the index of a category, or NaN where the value is missing.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lipscale.data.cells import Cells, ColumnError
from lipscale.data.columns import Columns
from lipscale.data.dataset import Column, Samples, listed
from lipscale.data.ids import tells_rows_apart
from lipscale.data.memory import require_memory
from lipscale.data.stored import Stored
from lipscale.data.table_file import TableFile
from lipscale.errors import UserError
from lipscale.settings import DataSettings

log = logging.getLogger("lipscale")


def read_table(
    source: TableFile, settings: DataSettings, *, columns: tuple[Column, ...] = (), classes: tuple[str, ...] = ()
) -> tuple[Samples, tuple[Column, ...], tuple[str, ...]]:
    """Samples, columns and classes; with those of a run the table is read as that run's was, whatever it looks like.

    Without them every column but the label, the dropped ones and ids is an input. It holds numbers if all its cells
    do, or dates, and else categories; `categories` and `numbers` name columns that are not what they look like.
    """
    label = [] if settings.label is None else [settings.label]
    known = {column.name: column for column in columns}
    chosen = [*known] or _chosen(source, settings)
    source.require(label, "the label")
    source.require(known, "the run's column")
    texts = {*label, *settings.categories, *(name for name in known if known[name].categories)}
    found = source.read([*dict.fromkeys(chosen + label)], texts)
    count = len(found[chosen[0]])
    if count == 0:
        raise UserError(f"{source.path} holds no row below its column names")
    targets = np.empty(0)
    with source.opened():
        room = _room(source, count, len(chosen))
        columns = _read_columns(source, chosen, found, room, settings, known)
        if settings.label is not None:
            classes, targets = Cells(source, settings.label, found[settings.label], as_text=True).as_labels(classes)
    if not columns:
        ids = "every column but the label is different in each row, as ids are"
        raise UserError(f"{source.path}: {ids}: there is nothing to learn from; name numbers in `numbers`")
    width = len(columns)
    rows = torch.from_numpy(room[:, :width].copy()) if isinstance(room, np.ndarray) else Stored.of(room.first(width))
    return Samples(rows, torch.from_numpy(targets).long()), columns, classes


def _room(source: TableFile, rows: int, columns: int) -> np.ndarray | Columns:
    """Where raw rows are put together: in memory, but for a table in several files, which may be larger."""
    if source.is_sharded:
        return Columns.empty(rows, columns)
    require_memory(2 * 8 * rows * columns, f"{source.path} ({rows} rows)")
    return np.empty((rows, columns))


def _chosen(source: TableFile, settings: DataSettings) -> list[str]:
    """The columns to learn from, before ids are noticed."""
    lists = {"`drop`": settings.drop, "a category": settings.categories, "a number": settings.numbers}
    for what, names in lists.items():
        source.require(names, what)
    if both := set(settings.categories).intersection(settings.numbers):
        raise UserError(f"column {min(both)!r} cannot be in `categories` and in `numbers`")
    chosen = [name for name in source.names if name not in (settings.label, *settings.drop)]
    if not chosen:
        raise UserError(f"{source.path} has no column but the label: there is nothing to learn from")
    return chosen


def _read_columns(
    source: TableFile,
    chosen: Sequence[str],
    found: dict[str, Any],
    room: np.ndarray | Columns,
    settings: DataSettings,
    known: dict[str, Column],
) -> tuple[Column, ...]:
    """Put columns into their room, one after the other; all that cannot be read are named in one error."""
    columns: list[Column] = []
    problems: list[ColumnError] = []
    notes: dict[str, list[str]] = {}
    for name in chosen:
        forced = name in settings.categories
        as_text = forced or (name in known and bool(known[name].categories))
        try:
            cells = Cells(source, name, found.pop(name), as_text=as_text)  # what is copied need not stay
            if name in known:
                read: Any = known[name], cells.as_known(known[name])
            else:
                read = cells.as_new(category=forced, numeric=name in settings.numbers)
        except ColumnError as error:
            problems.append(error)
            continue
        if read is not None:
            if isinstance(room, Columns):
                room.write(len(columns), read[1])
            else:
                room[:, len(columns)] = read[1]
            columns.append(read[0])
        if name not in known and name not in (*settings.categories, *settings.numbers):
            notes.setdefault(_note(cells, read), []).append(repr(name))
    if problems:
        raise _all_of(problems, source, known)
    _warn(source, notes)
    return tuple(columns)


def _all_of(problems: Sequence[ColumnError], source: TableFile, known: dict[str, Column]) -> UserError:
    """One error for all columns that cannot be read."""
    if len(problems) == 1:
        return problems[0]
    told = "; ".join(error.problem for error in problems[:5])
    more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
    names = ",".join(error.name[:40] for error in problems[:20])
    way_out = "mend them or leave them empty" if known else f"mend them, or leave them out: `drop` {names}"
    return UserError(f"{source.path}: {len(problems)} columns cannot be read: {told}{more}; {way_out}")


def _note(cells: Cells, read: tuple[Column, np.ndarray] | None) -> str:
    """What a user should know of a column that was taken for something; mostly nothing."""
    if read is None:
        return "different in each row and left out, as ids are (name it in `numbers` to learn from it)"
    column, values = read
    if column.other:
        kept = f"the {len(column.categories) - 1} commonest stay, all others are one"
        return f"of too many categories: {kept}; `drop` leaves it out"
    if column.categories:
        return "taken for categories, as codes with leading zeros are (`numbers`)" if cells.is_padded else ""
    if column.dates:
        return f"taken for dates of the form {cells.form}: day or month first?" if cells.is_ambiguous else ""
    return "different in each row: if it is an id, leave it out (`drop`)" if tells_rows_apart(values) else ""


def _warn(source: TableFile, notes: dict[str, list[str]]) -> None:
    for note, names in notes.items():
        if note:
            log.warning(f"{source.path}: {listed(names)} {'is' if len(names) == 1 else 'are'} {note}")
