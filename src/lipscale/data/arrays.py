"""A user's own arrays: an .npz file with x and y, and optionally x_test, y_test and classes."""

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipscale.data.dataset import Dataset, Samples, check_samples, stratified
from lipscale.errors import UserError

TEST_FRACTION = 0.2


def read(path: Path) -> Dataset:
    """Images (N, C, H, W) or (N, H, W), as bytes or as numbers in [0, 1], or a table (N, F); labels 0, 1, ...

    Without x_test and y_test a stratified fifth is held out as the test part.
    """
    try:
        # pickled objects stay shut: they could run code
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"{path} is no .npz file of plain arrays (such as np.savez writes)") from error
    for key in ("x", "y"):
        if key not in arrays:
            raise UserError(f"{path} holds {', '.join(arrays) or 'nothing'}; expected x and y (and x_test, y_test)")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise UserError(f"{path} has one of x_test and y_test; give both or none")
    samples = Samples(_inputs(arrays["x"], path), _labels(arrays["y"], path))
    if len(samples.inputs) != len(samples.labels):
        raise UserError(f"{path} has {len(samples.inputs)} rows in x but {len(samples.labels)} in y")
    if len(samples) == 0:
        raise UserError(f"{path} is empty")
    check_samples(samples, str(path), int(samples.labels.max()) + 1)  # here, where indices are the file's own
    absent = set(range(int(samples.labels.max()) + 1)) - set(samples.labels.tolist())
    if absent:
        raise UserError(f"{path}: labels must be 0, 1, 2, ... without gaps; {min(absent)} does not occur")
    names = arrays["classes"].astype(str).tolist() if "classes" in arrays else None
    if "x_test" in arrays:
        test = Samples(_inputs(arrays["x_test"], path), _labels(arrays["y_test"], path))
    else:
        held_out, rest = stratified(samples.labels, max(1, round(TEST_FRACTION * len(samples))), seed=0, stream="test")
        samples, test = samples.take(rest), samples.take(held_out)
    classes = tuple(names or map(str, range(int(samples.labels.max()) + 1)))
    return Dataset(path.stem, samples, test, classes)


def _inputs(array: np.ndarray, path: Path) -> Tensor:
    if array.ndim not in (2, 3, 4) or array.dtype.kind not in "fiub":
        raise UserError(f"{path}: expected numbers of shape (N, F), (N, H, W) or (N, C, H, W), got {array.shape}")
    if array.ndim == 3:
        array = array[:, None]
    if array.ndim == 4 and array.shape[3] in (1, 3, 4) and array.shape[1] not in (1, 3, 4):
        raise UserError(f"{path}: channels come first, (N, C, H, W), got {array.shape}: x.transpose(0, 3, 1, 2)")
    if array.ndim == 4 and array.dtype != np.uint8 and array.size:
        low, high = array.min(), array.max()
        if (low < 0 or high > 1) and np.isfinite(array).all():  # what is not finite is named later, with its place
            raise UserError(f"{path}: images are bytes or numbers in [0, 1], got {low:g}..{high:g}")
    if array.ndim == 2:
        return torch.from_numpy(array.astype(np.float64))  # a large offset would swallow a column in float32
    return torch.from_numpy(array if array.dtype == np.uint8 else array.astype(np.float32))


def _labels(array: np.ndarray, path: Path) -> Tensor:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(f"{path}: expected whole-number labels of shape (N,), got {array.dtype} {array.shape}")
    return torch.from_numpy(array.astype(np.int64))
