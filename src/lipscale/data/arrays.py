"""A user's own arrays: an .npz file with x and y, and optionally x_test, y_test and classes."""

import warnings
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipscale.data.dataset import Dataset, Samples, check_samples, hold_out
from lipscale.data.memory import reading, require_memory
from lipscale.errors import UserError
from lipscale.settings import DataSettings


def read(path: Path, settings: DataSettings) -> Dataset:
    """Images (N, C, H, W) or (N, H, W), as bytes or as numbers in [0, 1], or a table (N, F); labels 0, 1, ...

    The test part is x_test and y_test, or x and y of the file `test_data`, or else a stratified share.
    """
    arrays = load_arrays(path, "x", "y", "x_test", "y_test", "classes")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise UserError(f"{path} has one of x_test and y_test; give both or none")
    if settings.test_data is not None and "x_test" in arrays:
        raise UserError(f"{path} has its own test part (x_test); leave `test_data` out")
    samples = _samples(arrays, path)
    highest = int(samples.labels.max()) if len(samples) else 0
    check_samples(samples, str(path), highest + 1)  # here, where indices are the file's own
    present = samples.labels.unique()  # not a range up to the highest: that could be any number
    if len(present) <= highest:
        absent = next(i for i, label in enumerate(present.tolist()) if i != label)
        raise UserError(f"{path}: labels must be 0, 1, 2, ... without gaps; {absent} does not occur")
    names = arrays.get("classes", np.arange(highest + 1))
    if names.ndim != 1 or names.dtype.kind not in "SUiu":
        raise UserError(f"{path}: expected classes as a list of names, got {names.dtype} {names.shape}")
    classes = tuple(names.astype(str).tolist())
    if settings.test_data is not None:
        parts = samples, read_samples(settings.test_data)
    elif "x_test" in arrays:
        parts = samples, _samples(arrays, path, "_test")
    else:
        parts = hold_out(samples, settings.test_fraction, classes)
    return Dataset(path.stem, *parts, classes)


def read_samples(path: Path) -> Samples:
    """The arrays x and y of an .npz file, as they are."""
    return _samples(load_arrays(path, "x", "y"), path)


def load_arrays(path: Path, *keys: str) -> dict[str, np.ndarray]:
    """The arrays of these names in an .npz file; their sizes are asked for before memory is taken."""
    with reading(path, "an .npz file of plain arrays (such as np.savez writes)"), zipfile.ZipFile(path) as archive:
        present = [key for key in keys if f"{key}.npy" in archive.namelist()]
        return {key: _array(archive.open(f"{key}.npy"), f"{key} in {path}") for key in present}


def load_array(path: Path) -> np.ndarray:
    """The array in an .npy file."""
    with reading(path, "a plain array (such as np.save writes)"), path.open("rb") as file:
        return _array(file, str(path))


def _array(file: Any, name: str) -> np.ndarray:
    """An array in numpy's format: first the header, then as many bytes as it says. Pickled objects stay shut."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    read = readers[np.lib.format.read_magic(file)]
    with warnings.catch_warnings(action="ignore"):  # a header from Python 2's days is as good
        shape, fortran, kind = read(file)
    header = f"its header says {shape} of {str(kind)[:60]}"
    if kind.hasobject or kind.fields or kind.subdtype or kind.itemsize == 0 or min(shape, default=0) < 0:
        raise UserError(f"{name}: expected plain arrays of numbers or names; {header}")
    size = prod(shape) * kind.itemsize
    require_memory(3 * size, f"{name} ({header})")
    raw = file.read(size + 1)  # one more than it should have, and no more: a bomb stays shut
    if len(raw) != size:
        raise UserError(f"{name} has {'more' if len(raw) > size else len(raw)} bytes where {header}")
    return np.frombuffer(raw, kind).reshape(shape, order="F" if fortran else "C").copy()


def _samples(arrays: Mapping[str, np.ndarray], path: Path, part: str = "") -> Samples:
    if not {f"x{part}", f"y{part}"} <= arrays.keys():
        raise UserError(f"{path}: expected x and y (and x_test, y_test), got {', '.join(arrays) or 'no array'}")
    labels = arrays[f"y{part}"]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UserError(f"{path}: expected whole-number labels of shape (N,), got {labels.dtype} {labels.shape}")
    return Samples(_inputs(arrays[f"x{part}"], path), torch.from_numpy(labels.astype(np.int64)))


def _inputs(array: np.ndarray, path: Path) -> Tensor:
    if array.ndim not in (2, 3, 4) or array.dtype.kind not in "fiub" or (len(array) and array.size == 0):
        shapes = "(N, F), (N, H, W) or (N, C, H, W)"
        raise UserError(f"{path}: expected numbers of shape {shapes}, got {array.dtype} {array.shape}")
    if array.ndim == 2:
        return torch.from_numpy(array.astype(np.float64))  # a large offset would swallow a column in float32
    array = array[:, None] if array.ndim == 3 else array
    if array.shape[3] in (1, 3, 4) and array.shape[1] not in (1, 3, 4):
        raise UserError(f"{path}: channels come first, (N, C, H, W), got {array.shape}: x.transpose(0, 3, 1, 2)")
    return as_pixels(array, path)


def as_pixels(array: np.ndarray, path: Path | str) -> Tensor:
    """Images as they are, bytes or numbers in [0, 1]; what is not finite is named elsewhere, with its place."""
    if array.dtype == np.uint8:
        return torch.from_numpy(array)
    if array.size and np.isfinite(array).all() and (array.min() < 0 or array.max() > 1):
        raise UserError(f"{path}: images are bytes or numbers in [0, 1], got {array.min():g}..{array.max():g}")
    return torch.from_numpy(array.astype(np.float32))
