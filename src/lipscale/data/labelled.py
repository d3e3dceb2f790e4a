"""New labelled data for a run that exists, read as that run's own were."""

from dataclasses import replace
from functools import reduce
from pathlib import Path

from lipscale.data import arrays
from lipscale.data.dataset import Preprocessing, Samples, check_samples
from lipscale.data.encode import require_numbers
from lipscale.data.folder import read_class_folders
from lipscale.data.inputs import from_raw
from lipscale.data.shards import find_shards
from lipscale.data.table import read_table
from lipscale.data.table_file import TABLES, open_table
from lipscale.errors import UserError
from lipscale.settings import DataSettings


def read_labelled(path: Path, settings: DataSettings, done: Preprocessing, classes: tuple[str, ...]) -> Samples:
    """Samples as a run's network takes them: a table with its columns, a folder of class folders, or an .npz file.

    Args:
        path: Of the kind that the run was trained on.
        settings: The run's; its label column names the classes of a table.
        done: What the run did to its inputs; pictures of other sizes are brought to its own.
        classes: The run's; no other may come, and not all need to.

    Returns:
        The samples.
    """
    if shards := find_shards(path):
        return reduce(Samples.join, (read_labelled(shard, settings, done, classes) for shard in shards))
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if path.suffix.lower() in TABLES:
        return _table(path, settings, done, classes)
    if path.is_dir():
        if len(done.input_shape) != 3 or done.input_shape[0] not in (1, 3):
            raise UserError(f"{path} is a folder, and the run takes no pictures but inputs of shape {done.input_shape}")
        return read_class_folders(path, classes, done.input_shape, fit=done.fit)
    if path.suffix.lower() == ".npz":
        return _arrays(path, done, classes)
    raise UserError(f"{path}: expected a .csv or .parquet table, a folder of class folders, or an .npz file")


def _table(path: Path, settings: DataSettings, done: Preprocessing, classes: tuple[str, ...]) -> Samples:
    if not done.columns or settings.label is None:
        raise UserError(f"{path} is a table, and the run was not trained on one: give what it was trained on, or .npz")
    samples, *_ = read_table(open_table(path), settings, columns=done.columns, classes=classes)
    return replace(samples, inputs=from_raw(samples.inputs[:], str(path), done).ready)


def _arrays(path: Path, done: Preprocessing, classes: tuple[str, ...]) -> Samples:
    samples = arrays.read_samples(path)
    is_table = len(done.input_shape) == 1
    found, shape = tuple(samples.inputs.shape[1:]), (len(done.column_mean),) if is_table else done.input_shape
    require_numbers(str(path), done)
    if found != shape:
        raise UserError(f"{path}: the run takes inputs of shape {shape}, got {found}")
    check_samples(samples, str(path), len(classes))
    return replace(samples, inputs=from_raw(samples.inputs[:], str(path), done).ready) if is_table else samples
