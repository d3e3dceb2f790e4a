"""From a name or a path to a Dataset."""

import os
from dataclasses import replace
from pathlib import Path

from lipscale.data import arrays
from lipscale.data.dataset import Column, Dataset, Preprocessing, as_input, hint, hold_out, listed
from lipscale.data.folder import read_folder
from lipscale.data.parquet_shards import picture_column
from lipscale.data.registry import READERS, data_folders, find_folder
from lipscale.data.shards import find_shards, read_shards
from lipscale.data.table import read_table
from lipscale.data.table_file import PARQUET, TABLES, open_table
from lipscale.errors import UserError
from lipscale.settings import DataSettings

KINDS = "a folder of class folders with pictures, a .csv or .parquet table, an .npz file, or a folder of such files"


def load_dataset(
    data: str | DataSettings,
    data_dir: Path | None = None,
    *,
    classes: tuple[str, ...] = (),
    stored: Preprocessing | None = None,
) -> Dataset:
    """A named set, or a user's data at a path, in memory: pixels are numbers in [0, 1], a table's columns as they are.

    Args:
        data: A name of READERS, a path, or settings that also say how the files are read.
        data_dir: Where named sets are looked for first, else the settings' `data_dir`; then in the usual folders.
        classes: The classes of a run that exists; no other may come.
        stored: What that run did to its inputs; the data are read as they were then.

    Returns:
        The train part, the test part and the classes.

    Example:
        >>> digits = load_dataset("digits")
        >>> len(digits.train), len(digits.test), digits.input_shape
        (1437, 360, (1, 8, 8))
    """
    dataset = read_dataset(data, data_dir, classes=classes, stored=stored)
    if len(dataset.input_shape) == 1:
        return dataset
    train, test = (replace(part, inputs=as_input(part.inputs)) for part in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test)


def read_dataset(
    data: str | DataSettings,
    data_dir: Path | None = None,
    *,
    classes: tuple[str, ...] = (),
    stored: Preprocessing | None = None,
) -> Dataset:
    """As `load_dataset`, but pixels stay as the files have them: bytes, and on the disk where they are many."""
    settings = data if isinstance(data, DataSettings) else DataSettings.checked({"data": data})
    name, path = settings.data, Path(settings.data).expanduser()
    if name in READERS:
        return _read_known(settings, data_dir or settings.data_dir)
    if shards := find_shards(name):
        return read_shards(shards, settings, classes=classes, stored=stored)
    if not os.path.exists(path):  # False for a name too long or with a NUL
        if path.suffix or len(path.parts) > 1:
            raise UserError(f"{name} does not exist")
        known = hint(name, tuple(READERS), f"known: {', '.join(READERS)}.")
        raise UserError(f"unknown data set {name!r}; {known} Or give the path of {KINDS}")
    if path.suffix.lower() in PARQUET and picture_column(path, settings):
        return read_shards([path], settings, classes=classes, stored=stored)
    if path.suffix.lower() in TABLES:
        return _read_table(path, settings, classes, stored.columns if stored else ())
    if settings.label is not None:
        raise UserError(f"`label` is for tables (.csv, .parquet), and {path} is none")
    if path.is_dir():
        return read_folder(path, settings, classes=classes, stored=stored)
    if path.suffix.lower() == ".npz":
        return arrays.read(path, settings)
    raise UserError(f"{path} is no data set; expected {KINDS}")


def _read_known(settings: DataSettings, data_dir: Path | None) -> Dataset:
    name, known = settings.data, READERS[settings.data]
    if settings.label is not None or settings.test_data is not None:
        raise UserError(f"{name} has its labels and its test part; leave `label` and `test_data` out")
    folder = find_folder(name, data_dir)
    if folder is None:
        searched = ", ".join(map(str, data_folders(data_dir)))
        file = next(iter(known.files))
        manual = f"put {file}, ... into DIR/{name}" if "idx" in file else f"unpack the official {file} in DIR"
        raise UserError(f"{name} is not in {searched}: {known.get}, or {manual} and give DIR as `data_dir`")
    return known.read(folder)


def _read_table(path: Path, settings: DataSettings, classes: tuple[str, ...], columns: tuple[Column, ...]) -> Dataset:
    source = open_table(path)
    if settings.label is None:
        raise UserError(f"{path}: which column is the class? Give `label`, one of {listed(source.names)}")
    train, columns, classes = read_table(source, settings, columns=columns, classes=classes)
    if settings.test_data is None:
        train, test = hold_out(train, settings.test_fraction, classes)
    else:
        test, *_ = read_table(open_table(settings.test_data), settings, columns=columns, classes=classes)
    return Dataset(path.stem, train, test, classes, columns=columns)
