"""Files to answer for -> network inputs: pictures and folders of them, tables and arrays."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipscale.data.arrays import load_array, load_arrays
from lipscale.data.dataset import Preprocessing, as_input
from lipscale.data.folder import pictures_below
from lipscale.data.inputs import Inputs, as_inputs, from_array, from_table, picture_shape
from lipscale.data.pictures import in_parallel, read_picture
from lipscale.data.table_file import TABLES, TableFile, open_table
from lipscale.errors import UserError

AT_ONCE = 512  # pictures
TRUE = "true_"  # before the name of the label where answers repeat it
ARRAYS = (".npy", ".npz")


def read_inputs(paths: Sequence[Path], preprocessing: Preprocessing) -> tuple[Tensor, list[str]]:
    """Network inputs (N, *input_shape) and a name for each, from pictures, tables, .npy, .npz (x) or rows."""
    found = [*read_files(paths, preprocessing)]
    return torch.cat([some.ready for some in found]), [name for some in found for name in some.names]


def read_rows(rows: Any, preprocessing: Preprocessing) -> Tensor:
    """Network inputs from a path, several paths, or what `as_inputs` takes."""
    paths = [rows] if isinstance(rows, str | Path) else rows if isinstance(rows, list | tuple) else []
    if paths and all(isinstance(path, str | Path) for path in paths):
        return read_inputs([Path(path) for path in paths], preprocessing)[0]
    return as_inputs(rows, preprocessing).ready


def read_files(
    paths: Sequence[Path],
    preprocessing: Preprocessing,
    *,
    keep: Sequence[str] = (),
    label: str | None = None,
    classes: Sequence[str] = (),
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Iterator[Inputs]:
    """The inputs in these files and folders, a file or some hundred pictures at a time.

    The columns `keep` of tables come along. So does the truth where it is known, as true_NAME: the column `label` of a
    table, y of an .npz file, and of a picture the folder that is called like one of the `classes`.
    """
    files = [(file, path) for path in paths for file in (pictures_below(path) if path.is_dir() else [path])]
    done = 0
    for is_picture, group in groupby(files, key=lambda pair: pair[0].suffix.lower() not in (*TABLES, *ARRAYS)):
        found = [*group]
        size = AT_ONCE if is_picture else 1
        for start in range(0, len(found), size):
            some = found[start : start + size]
            if is_picture:
                yield _pictures(some, preprocessing, classes, keep)
            else:
                yield _rows(some[0][0], preprocessing, keep=keep, label=label, classes=classes)
            done += len(some)
            on_progress("inputs", done, len(files))


def _pictures(
    some: Sequence[tuple[Path, Path]], preprocessing: Preprocessing, classes: Sequence[str], keep: Sequence[str]
) -> Inputs:
    """Pictures, each with the folder that was asked for; the class folder in between is the truth."""
    paths = [path for path, _ in some]
    _nothing_to_keep(paths[0], keep)
    shape = picture_shape(str(paths[0]), preprocessing)
    pixels = np.stack([*in_parallel(partial(read_picture, shape=shape, fit=preprocessing.fit), paths)])
    between = [path.relative_to(base).parts[:-1] if base != path else () for path, base in some]
    truth = [next((part for part in parts if part in classes), None) for parts in between]
    kept = {f"{TRUE}class": truth} if any(truth) else {}
    return Inputs(as_input(torch.from_numpy(pixels)), [*map(str, paths)], kept=kept)


def _rows(
    path: Path, preprocessing: Preprocessing, *, keep: Sequence[str], label: str | None, classes: Sequence[str]
) -> Inputs:
    """A table or an array."""
    suffix = path.suffix.lower()
    if suffix in TABLES:
        source = open_table(path, named=bool(preprocessing.columns))
        wanted = {name: name for name in keep} | ({f"{TRUE}{label}": label} if label in source.names else {})
        return replace(from_table(source, preprocessing), kept=_columns(source, wanted))
    _nothing_to_keep(path, keep)
    if suffix == ".npy":
        return from_array(load_array(path), str(path), preprocessing)
    arrays = load_arrays(path, "x", "y")
    if "x" not in arrays:
        raise UserError(f"{path}: expected an array x")
    found, truth = from_array(arrays["x"], str(path), preprocessing), arrays.get("y", np.empty(0))
    named = truth.shape == (len(found.ready),) and truth.dtype.kind in "iu"
    known = named and classes and truth.min() >= 0 and truth.max() < len(classes)
    return replace(found, kept={f"{TRUE}class": [classes[y] for y in truth.tolist()]}) if known else found


def _nothing_to_keep(path: Path, keep: Sequence[str]) -> None:
    if keep:
        raise UserError(f"{path} is no table: it has no column {keep[0]!r} to keep")


def _columns(source: TableFile, wanted: dict[str, Any]) -> dict[str, list[Any]]:
    """Columns of a table by the names that they get, cell by cell as they stand there."""
    source.require(wanted.values(), "to keep")
    names = list(dict.fromkeys(wanted.values()))
    with source.opened():
        cells = {name: [*map(_plain, column.to_pylist())] for name, column in source.read(names, set(names)).items()}
    return {new: cells[old] for new, old in wanted.items()}


def _plain(cell: Any) -> Any:
    """A cell as every kind of file can hold it."""
    return cell if cell is None or isinstance(cell, str | int | float) else str(cell)
