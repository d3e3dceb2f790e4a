"""Raw files -> network inputs, by what a run did to its training data."""

import logging
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipscale.data.arrays import load_array, load_arrays
from lipscale.data.dataset import Preprocessing, as_input
from lipscale.data.encode import encode
from lipscale.data.load import TABLES, open_table
from lipscale.data.memory import require_file, require_memory
from lipscale.data.pictures import quiet_pillow, read_picture
from lipscale.data.table import read_table
from lipscale.errors import UserError

log = logging.getLogger("lipscale")


def read_inputs(paths: Sequence[Path], preprocessing: Preprocessing) -> tuple[Tensor, list[str]]:
    """Network inputs from files as they are.

    Args:
        paths: Pictures, tables, .npy or .npz arrays (x), or rows of numbers in a .csv.
        preprocessing: What the run did to its training data.

    Returns:
        The inputs (N, *input_shape), and a name for each.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "image.npy"
        >>> np.save(path, np.zeros((8, 8), np.uint8))
        >>> read_inputs([path], Preprocessing((1, 8, 8), mean=(0.3,)))[0].shape
        torch.Size([1, 1, 8, 8])
    """
    inputs, names = [], []
    for path in paths:
        found = _read(path, preprocessing)
        inputs.append(found)
        names += [str(path)] if len(found) == 1 else [f"{path}[{i}]" for i in range(len(found))]
    return torch.cat(inputs), names


def _read(path: Path, preprocessing: Preprocessing) -> Tensor:
    size = require_file(path)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        rows = load_array(path)
    elif suffix == ".npz":
        arrays = load_arrays(path, ("x",))
        if "x" not in arrays:
            raise UserError(f"{path} is no .npz file of plain arrays with an x")
        rows = arrays["x"]
    elif suffix in TABLES and preprocessing.columns:
        return _table(path, preprocessing)
    elif suffix in (".csv", ".tsv", ".txt"):
        require_memory(20 * size, str(path))
        rows = _csv(path)
    else:
        return _picture(path, preprocessing)
    return _as_inputs(rows, path, preprocessing)


def _table(path: Path, preprocessing: Preprocessing) -> Tensor:
    """Rows of a table with the run's columns, in any order; further columns, such as the label, are passed over."""
    source = open_table(path)
    rows = read_table(source, columns=preprocessing.columns).rows
    lacking = rows.isnan().nonzero()
    if len(lacking):
        row, column = lacking[0].tolist()
        name = preprocessing.columns[column].name
        log.warning(
            f"{path}: {len(lacking)} values are missing or categories that the run has not seen, such as {name!r} in "
            f"row {row + 1}; the training mean stands in for a number, no category for a category"
        )
    return encode(rows, preprocessing)


def _csv(path: Path) -> np.ndarray:
    """Rows of numbers without names, for runs that were trained on arrays."""
    rows: list[list[float]] = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append([float(cell) for cell in line.replace(";", ",").split(",")])
        except ValueError:
            if number > 1:  # a first line of names is welcome
                raise UserError(f"{path}, line {number}: expected numbers, got {line[:60]!r}") from None
            continue
        if len(rows[-1]) != len(rows[0]):
            expected, got = len(rows[0]), len(rows[-1])
            raise UserError(f"{path}, line {number}: expected {expected} numbers as in the first row, got {got}")
    if not rows:
        raise UserError(f"{path} holds no row of numbers")
    return np.array(rows)


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
    numbers = rows if rows.dtype == np.uint8 else rows.astype(np.float64)
    inputs = torch.from_numpy(numbers.reshape(-1, *shape))
    if len(shape) == 1:
        return encode(inputs, preprocessing)
    low, high = float(numbers.min()), float(numbers.max())
    if rows.dtype != np.uint8 and (low < 0 or high > 1):
        raise UserError(f"{path}: pixels are bytes or numbers in [0, 1], got {low:g}..{high:g}")
    return as_input(inputs)


def _picture(path: Path, preprocessing: Preprocessing) -> Tensor:
    shape = preprocessing.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise UserError(f"{path}: this run takes inputs of shape {shape}, not pictures; give .csv, .npy or .npz")
    with quiet_pillow():
        return as_input(torch.from_numpy(read_picture(path, shape, fit=preprocessing.fit).copy())).unsqueeze(0)
