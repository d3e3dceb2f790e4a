"""A user's own arrays: an .npz file with x and y, and optionally x_test, y_test and classes."""

import warnings
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

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
    classes = class_names(samples.labels, arrays.get("classes"), str(path))
    if settings.test_data is not None:
        parts = samples, read_samples(settings.test_data)
    elif "x_test" in arrays:
        parts = samples, _samples(arrays, path, "_test")
    else:
        parts = hold_out(samples, settings.test_fraction, classes)
    return Dataset(path.stem, *parts, classes)


def class_names(labels: Tensor, names: np.ndarray | None, where: str) -> tuple[str, ...]:
    """What people call the classes; labels that are no 0, 1, 2, ... without gaps are refused."""
    highest, present = int(labels.max()), labels.unique()  # not a range up to the highest: that could be any number
    if len(present) <= highest:
        absent = next(i for i, label in enumerate(present.tolist()) if i != label)
        raise UserError(f"{where}: labels must be 0, 1, 2, ... without gaps; {absent} does not occur")
    names = np.arange(highest + 1) if names is None else names
    if names.ndim != 1 or names.dtype.kind not in "SUiu":
        raise UserError(f"{where}: expected classes as a list of names, got {names.dtype} {names.shape}")
    return tuple(names.astype(str).tolist())


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


class Header(NamedTuple):
    """What a file in numpy's format says of the array behind it."""

    shape: tuple[int, ...]
    fortran: bool  # columns come first
    kind: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return prod(self.shape) * self.kind.itemsize

    def __str__(self) -> str:
        return f"its header says {self.shape} of {str(self.kind)[:60]}"


def read_header(file: Any, name: str) -> Header:
    """The header of an array in numpy's format. Pickled objects stay shut."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    read = readers[np.lib.format.read_magic(file)]
    with warnings.catch_warnings(action="ignore"):  # a header from Python 2's days is as good
        header = Header(*read(file))
    shape, _, kind = header
    if kind.hasobject or kind.fields or kind.subdtype or kind.itemsize == 0 or min(shape, default=0) < 0:
        raise UserError(f"{name}: expected plain arrays of numbers or names; {header}")
    return header


def _array(file: Any, name: str) -> np.ndarray:
    """An array in numpy's format: first the header, then as many bytes as it says."""
    header = read_header(file, name)
    require_memory(3 * header.size, f"{name} ({header})")
    raw = file.read(header.size + 1)  # one more than it should have, and no more: a bomb stays shut
    if len(raw) != header.size:
        raise UserError(f"{name} has {'more' if len(raw) > header.size else len(raw)} bytes where {header}")
    return np.frombuffer(raw, header.kind).reshape(header.shape, order="F" if header.fortran else "C").copy()


def _samples(arrays: Mapping[str, np.ndarray], path: Path, part: str = "") -> Samples:
    if not {f"x{part}", f"y{part}"} <= arrays.keys():
        raise UserError(f"{path}: expected x and y (and x_test, y_test), got {', '.join(arrays) or 'no array'}")
    return Samples(_inputs(arrays[f"x{part}"], path), as_labels(arrays[f"y{part}"], path))


def as_labels(labels: np.ndarray, path: Path) -> Tensor:
    """Labels as torch has them."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UserError(f"{path}: expected whole-number labels of shape (N,), got {labels.dtype} {labels.shape}")
    return torch.from_numpy(labels.astype(np.int64))


def _inputs(array: np.ndarray, path: Path) -> Tensor:
    shape = input_shape(array.shape, array.dtype, path)
    if len(shape) == 1:
        return torch.from_numpy(array.astype(np.float64))  # a large offset would swallow a column in float32
    return as_pixels(array.reshape(len(array), *shape), path)


def input_shape(shape: tuple[int, ...], kind: np.dtype[Any], path: Path) -> tuple[int, ...]:
    """(F,) or (C, H, W), the shape of one input of an array x."""
    if len(shape) not in (2, 3, 4) or kind.kind not in "fiub" or (shape[0] and prod(shape) == 0):
        shapes = "(N, F), (N, H, W) or (N, C, H, W)"
        raise UserError(f"{path}: expected numbers of shape {shapes}, got {kind} {shape}")
    found = (1, *shape[1:]) if len(shape) == 3 else shape[1:]
    if len(found) == 3 and found[2] in (1, 3, 4) and found[0] not in (1, 3, 4):
        raise UserError(f"{path}: channels come first, (N, C, H, W), got {shape}: x.transpose(0, 3, 1, 2)")
    return found


def as_pixels(array: np.ndarray, path: Path | str) -> Tensor:
    """Images as they are, bytes or numbers in [0, 1]; what is not finite is named elsewhere, with its place."""
    require_pixels(array, path)
    return torch.from_numpy(array if array.dtype == np.uint8 else array.astype(np.float32))


def require_pixels(array: np.ndarray, path: Path | str) -> None:
    """Refuse numbers that are no pixels."""
    if array.dtype == np.uint8 or array.size == 0 or not np.isfinite(array).all():
        return
    if array.min() < 0 or array.max() > 1:
        raise UserError(f"{path}: images are bytes or numbers in [0, 1], got {array.min():g}..{array.max():g}")
