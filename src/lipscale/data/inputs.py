"""Raw files -> network inputs, by what a run did to its training data."""

import logging
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipscale.data.arrays import check_pixels, load_array, load_arrays
from lipscale.data.dataset import Preprocessing, as_input
from lipscale.data.encode import STAND_IN, encode
from lipscale.data.load import TABLES
from lipscale.data.memory import reading, require_memory
from lipscale.data.pictures import quiet_pillow, read_picture
from lipscale.data.table import read_table
from lipscale.data.table_file import number, open_table
from lipscale.errors import UserError

log = logging.getLogger("lipscale")


def read_inputs(paths: Sequence[Path], preprocessing: Preprocessing) -> tuple[Tensor, list[str]]:
    """Network inputs (N, *input_shape) and a name for each, from pictures, tables, .npy, .npz (x) or rows."""
    inputs = [_read(path, preprocessing) for path in paths]
    names = [
        str(path) if len(found) == 1 else f"{path}[{i}]"
        for path, found in zip(paths, inputs, strict=True)
        for i in range(len(found))
    ]
    return torch.cat(inputs), names


def _read(path: Path, preprocessing: Preprocessing) -> Tensor:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        rows = load_array(path)
    elif suffix == ".npz":
        arrays = load_arrays(path, ("x",))
        if "x" not in arrays:
            raise UserError(f"{path}: expected an array x")
        rows = arrays["x"]
    elif suffix in TABLES and preprocessing.columns:
        return _table(path, preprocessing)
    elif suffix in (".csv", ".tsv", ".txt"):
        rows = _csv(path)
    else:
        return _picture(path, preprocessing)
    return _as_inputs(rows, path, preprocessing)


def _table(path: Path, preprocessing: Preprocessing) -> Tensor:
    """Rows of a table with the run's columns, in any order; further columns, such as the label, are passed over."""
    rows = read_table(open_table(path), columns=preprocessing.columns)[0].inputs[:]
    lacking = rows.isnan().nonzero()
    if len(lacking):
        row, column = lacking[0].tolist()
        first = f"{preprocessing.columns[column].name!r} in row {row + 1}"
        problem = f"{len(lacking)} values are missing or categories that the run has not seen, such as {first}"
        log.warning(f"{path}: {problem}; {STAND_IN}")
    return encode(rows, preprocessing)


def _csv(path: Path) -> np.ndarray:
    """Rows of numbers without names, for runs that were trained on arrays."""
    rows: list[list[float | None]] = []
    with reading(path, "rows of numbers") as size:
        require_memory(20 * size, str(path))
        lines = path.read_text().splitlines()
    for at, line in enumerate(lines, 1):
        row = [number(cell) for cell in line.replace(";", ",").split(",")]
        if not line.strip() or (at == 1 and None in row):  # a first line of names is welcome
            continue
        if None in row or len(row) != len(rows[0] if rows else row):
            expected = f"expected {len(rows[0])} numbers as in the first row" if rows else "expected numbers"
            raise UserError(f"{path}, line {at}: {expected}, got {line[:60]!r}")
        rows.append(row)
    if not rows:
        raise UserError(f"{path} holds no row of numbers")
    return np.array(rows, np.float64)


def _as_inputs(rows: np.ndarray, path: Path, preprocessing: Preprocessing) -> Tensor:
    """Check an array and bring it to (N, *input_shape)."""
    if any(column.categories for column in preprocessing.columns):
        raise UserError(f"{path}: the run's table has categories; give a .csv or .parquet table with its columns")
    shape = preprocessing.input_shape
    if rows.dtype.kind not in "fiub" or rows.size == 0 or rows.size % prod(shape):
        raise UserError(f"{path}: expected numbers for inputs of shape {shape}, got {rows.dtype} {rows.shape}")
    # never reshape by count alone: channels that come last would be scrambled
    layouts = {shape, (prod(shape),), *([shape[1:]] if shape[0] == 1 else [])}
    if rows.shape not in layouts and rows.shape[1:] not in layouts:
        raise UserError(f"{path}: expected inputs of shape {shape} or rows of {prod(shape)}, got {rows.shape}")
    if not np.isfinite(rows).all():
        bad = int(np.argwhere(~np.isfinite(rows).reshape(-1, prod(shape)).all(1))[0, 0])
        raise UserError(f"{path}: input {bad} holds NaN or infinite values")
    inputs = torch.from_numpy((rows if rows.dtype == np.uint8 else rows.astype(np.float64)).reshape(-1, *shape))
    if len(shape) == 1:
        return encode(inputs, preprocessing)
    check_pixels(rows, path)
    return as_input(inputs)


def _picture(path: Path, preprocessing: Preprocessing) -> Tensor:
    shape = preprocessing.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise UserError(f"{path}: this run takes inputs of shape {shape}, not pictures; give .csv, .npy or .npz")
    with quiet_pillow():
        return as_input(torch.from_numpy(read_picture(path, shape, fit=preprocessing.fit).copy())).unsqueeze(0)
