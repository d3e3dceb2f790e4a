"""Raw inputs -> network inputs, by what a run did to its training data: tables, arrays and pictures in memory.

Raw values come in, as they stand in the user's files; standardising and spreading out is done here.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lipscale.data.arrays import as_pixels
from lipscale.data.dataset import Column, Preprocessing, as_input, listed
from lipscale.data.encode import STAND_IN, encode, outside, require_numbers
from lipscale.data.frame import is_frame, open_frame
from lipscale.data.pictures import as_bytes
from lipscale.data.table import read_table
from lipscale.data.table_file import TableFile
from lipscale.errors import UserError
from lipscale.settings import DataSettings

log = logging.getLogger("lipscale")


@dataclass(frozen=True)
class Inputs:
    """Network inputs, what people call each of them, and what else a file tells of them."""

    ready: Tensor  # (N, *input_shape)
    names: Sequence[str]
    raw: Tensor | None = None  # (N, columns): of tables, the numbers before they were standardised
    outside: Sequence[str] = ()  # of tables: in which columns each row lies far outside of the training data
    kept: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # columns of the file for the answers to repeat
    unused: tuple[str, ...] = ()  # columns of the file that the run does not look at


def as_inputs(rows: Any, preprocessing: Preprocessing) -> Inputs:
    """Raw inputs in memory: a DataFrame, an array or tensor, a picture or a list of pictures."""
    pictures = [rows] if isinstance(rows, Image.Image) else rows
    if isinstance(pictures, list | tuple) and pictures and all(isinstance(one, Image.Image) for one in pictures):
        shape = picture_shape("a picture", preprocessing)
        found = [as_bytes(one, shape, fit=preprocessing.fit, name=f"picture {i}") for i, one in enumerate(pictures)]
        return Inputs(as_input(torch.from_numpy(np.stack(found))), _numbered("picture", len(found)))
    if is_frame(rows):
        return from_table(open_frame(rows), preprocessing)
    if isinstance(rows, Tensor):
        rows = rows.detach().cpu()
        rows = (rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows).numpy()
    try:
        array = np.asarray(rows)
    except ValueError as error:  # lists of several lengths
        raise UserError(f"expected an array, a DataFrame, pictures or paths, got a {type(rows).__name__}") from error
    return from_array(array, "the array", preprocessing)


def picture_shape(where: str, preprocessing: Preprocessing) -> tuple[int, ...]:
    """The shape to which a run brings pictures; a run on rows is told apart."""
    shape = preprocessing.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise UserError(f"{where}: this run takes inputs of shape {shape}, not pictures; give .csv, .npy or .npz")
    return shape


def from_table(source: TableFile, preprocessing: Preprocessing) -> Inputs:
    """Rows with the run's columns, in any order, among others; or of numbers, for a run that was trained on arrays."""
    columns = preprocessing.columns or tuple(map(Column, source.names))
    raw = read_table(source, DataSettings.checked({}), columns=columns)[0].inputs[:]
    if not preprocessing.columns:
        return from_array(raw.numpy(), str(source.path), preprocessing)
    unused = tuple(name for name in source.names if name not in {column.name for column in columns})
    return from_raw(raw, str(source.path), preprocessing, unused)


def from_array(rows: np.ndarray, where: str, preprocessing: Preprocessing) -> Inputs:
    """Pixels, or the raw numbers of a table's columns in their order; one input or several."""
    require_numbers(where, preprocessing)
    is_table = len(preprocessing.input_shape) == 1
    shape = (len(preprocessing.column_mean),) if is_table else preprocessing.input_shape
    # never reshape by count alone: channels that come last would be scrambled
    layouts = {shape, (prod(shape),), *([shape[1:]] if shape[0] == 1 else [])}
    fits = rows.shape in layouts or rows.shape[1:] in layouts
    if rows.dtype.kind not in "fiub" or rows.size == 0 or not fits:
        expected = f"expected numbers for inputs of shape {shape} or rows of {prod(shape)}"
        raise UserError(f"{where}: {expected}, got {rows.dtype} {rows.shape}")
    rows = rows.reshape(-1, *shape)
    allowed = np.isfinite(rows) | (np.isnan(rows) if preprocessing.columns else False)
    if not allowed.all():
        raise UserError(f"{where}: input {int(np.argwhere(~allowed)[0, 0])} holds NaN or infinite values")
    if is_table:
        return from_raw(torch.from_numpy(rows.astype(np.float64)), where, preprocessing)
    return Inputs(as_input(as_pixels(rows, where)), _numbered(where, len(rows)))


def from_raw(raw: Tensor, where: str, preprocessing: Preprocessing, unused: tuple[str, ...] = ()) -> Inputs:
    """The raw numbers of a table, encoded; what is missing is named in a warning, but not where training had gaps."""
    expected = torch.tensor([column.missing for column in preprocessing.columns] or [False])
    lacking = (raw.isnan() & ~expected).nonzero()
    if len(lacking):
        row, column = lacking[0].tolist()
        first = f"{preprocessing.columns[column].name!r} in row {row + 1}"
        log.warning(f"{where}: {len(lacking)} values are missing, such as {first}; {STAND_IN}")
    far = _far_columns(raw, where, preprocessing)
    return Inputs(encode(raw, preprocessing), _numbered(where, len(raw)), raw, far, unused=unused)


def _far_columns(raw: Tensor, where: str, preprocessing: Preprocessing) -> list[str]:
    """Of each row the columns that are far outside of what training saw, or unseen; a warning sums them up."""
    names, far = column_names(preprocessing), outside(raw, preprocessing)
    found = [""] * len(raw)
    for row in (rows := far.any(1).nonzero().flatten().tolist()):
        found[row] = ", ".join(names[i] for i in far[row].nonzero().flatten().tolist())
    if rows:
        columns = listed([names[i] for i in far.any(0).nonzero().flatten().tolist()])
        problem = "lie far outside of what the run was trained on (or are of a category that it has not seen)"
        log.warning(f"{where}: {len(rows)} of {len(raw)} rows {problem}, in {columns}: answers mean little there")
    return found


def column_names(preprocessing: Preprocessing) -> list[str]:
    """What people call the columns of a table; those of an array have numbers."""
    return [column.name for column in preprocessing.columns] or [*map(str, range(len(preprocessing.column_mean)))]


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}[{i}]" for i in range(count)]
