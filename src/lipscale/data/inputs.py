"""Raw files -> network inputs, by what a run did to its training data."""

import logging
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipscale.data.arrays import as_pixels, load_array, load_arrays
from lipscale.data.dataset import Column, Preprocessing, as_input
from lipscale.data.encode import STAND_IN, encode
from lipscale.data.pictures import quiet_pillow, read_picture
from lipscale.data.table import read_table
from lipscale.data.table_file import TABLES, open_table
from lipscale.errors import UserError
from lipscale.settings import DataSettings

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
    if suffix in TABLES:
        return _table(path, preprocessing)
    if suffix == ".npy":
        return _as_inputs(load_array(path), path, preprocessing)
    if suffix == ".npz":
        arrays = load_arrays(path, "x")
        if not arrays:
            raise UserError(f"{path}: expected an array x")
        return _as_inputs(arrays["x"], path, preprocessing)
    shape = preprocessing.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise UserError(f"{path}: this run takes inputs of shape {shape}, not pictures; give .csv, .npy or .npz")
    with quiet_pillow():
        return as_input(torch.from_numpy(read_picture(path, shape, fit=preprocessing.fit).copy())).unsqueeze(0)


def _table(path: Path, preprocessing: Preprocessing) -> Tensor:
    """Rows with the run's columns, in any order, among others; or of numbers, for a run that was trained on arrays."""
    source = open_table(path, named=bool(preprocessing.columns))
    columns = preprocessing.columns or tuple(map(Column, source.names))
    rows = read_table(source, DataSettings.checked({}), columns=columns)[0].inputs[:]
    if not preprocessing.columns:
        return _as_inputs(rows.numpy(), path, preprocessing)
    lacking = rows.isnan().nonzero()
    if len(lacking):
        row, column = lacking[0].tolist()
        first = f"{columns[column].name!r} in row {row + 1}"
        problem = f"{len(lacking)} values are missing or categories that the run has not seen, such as {first}"
        log.warning(f"{path}: {problem}; {STAND_IN}")
    return encode(rows, preprocessing)


def _as_inputs(rows: np.ndarray, path: Path, preprocessing: Preprocessing) -> Tensor:
    """Check an array and bring it to (N, *input_shape)."""
    if any(column.categories for column in preprocessing.columns):
        raise UserError(f"{path}: the run's table has categories; give a .csv or .parquet table with its columns")
    shape = preprocessing.input_shape
    # never reshape by count alone: channels that come last would be scrambled
    layouts = {shape, (prod(shape),), *([shape[1:]] if shape[0] == 1 else [])}
    fits = rows.shape in layouts or rows.shape[1:] in layouts
    if rows.dtype.kind not in "fiub" or rows.size == 0 or not fits:
        expected = f"expected numbers for inputs of shape {shape} or rows of {prod(shape)}"
        raise UserError(f"{path}: {expected}, got {rows.dtype} {rows.shape}")
    rows = rows.reshape(-1, *shape)
    if not np.isfinite(rows).all():
        bad = int(np.argwhere(~np.isfinite(rows))[0, 0])
        raise UserError(f"{path}: input {bad} holds NaN or infinite values")
    if len(shape) == 1:
        return encode(torch.from_numpy(rows.astype(np.float64)), preprocessing)
    return as_input(as_pixels(rows, path))
