"""From a name or a path to a Dataset."""

import os
from pathlib import Path

from lipscale.data import arrays
from lipscale.data.dataset import Dataset, Preprocessing, hint, hold_out, listed
from lipscale.data.folder import read_folder
from lipscale.data.registry import READERS, data_folders, find_folder
from lipscale.data.table import read_table
from lipscale.data.table_file import open_table
from lipscale.errors import UserError
from lipscale.settings import DataSettings

TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq")
KINDS = "a folder of class folders with pictures, a .csv or .parquet table, or an .npz file"


def load_dataset(
    data: str | DataSettings,
    data_dir: Path | None = None,
    *,
    classes: tuple[str, ...] = (),
    stored: Preprocessing | None = None,
) -> Dataset:
    """A named set, or a user's data at a path.

    Args:
        data: A name of READERS, a path, or settings that also say how the files are read.
        data_dir: Where named sets lie; else the settings' `data_dir`, $LIPSCALE_DATA and the system's folders.
        classes: The classes of a run that exists; no other may come.
        stored: What that run did to its inputs; the data are read as they were then.

    Returns:
        The train part, the test part and the classes.

    Example:
        >>> digits = load_dataset("digits")
        >>> len(digits.train), len(digits.test), digits.input_shape
        (1437, 360, (1, 8, 8))
    """
    settings = data if isinstance(data, DataSettings) else DataSettings.checked({"data": data})
    name, data_dir = settings.data, data_dir or settings.data_dir
    if name in READERS:
        if settings.label is not None or settings.test_data is not None:
            raise UserError(f"{name} has its labels and its test part; leave `label` and `test_data` out")
        folder = find_folder(name, data_dir)
        if folder is None:
            searched = ", ".join(map(str, data_folders(data_dir)))
            layout, file = READERS[name].layouts[0][0], next(iter(READERS[name].files))
            manual = f"put {file}, ... into DIR/{layout}" if "idx" in file else f"unpack the official {file} in DIR"
            raise UserError(f"{name} is not in {searched}: {READERS[name].get}, or {manual} and give DIR as `data_dir`")
        return READERS[name].read(folder)
    path = Path(name).expanduser()
    if os.path.exists(path):  # False for a name too long or with a NUL
        return _read_path(path, settings, classes, stored)
    if path.suffix or len(path.parts) > 1:
        raise UserError(f"{name} does not exist")
    raise UserError(f"unknown data set {name!r}; {hint(name, tuple(READERS))} Or give the path of {KINDS}")


def _read_path(path: Path, settings: DataSettings, classes: tuple[str, ...], stored: Preprocessing | None) -> Dataset:
    if path.suffix.lower() in TABLES:
        return _read_table_file(path, settings, classes, stored)
    if settings.label is not None:
        raise UserError(f"`label` is for tables (.csv, .parquet), and {path} is none")
    if path.is_dir():
        return read_folder(path, settings, classes=classes, stored=stored)
    if path.suffix.lower() == ".npz":
        return arrays.read(path, test=settings.test_data, test_fraction=settings.test_fraction)
    raise UserError(f"{path} is no data set; expected {KINDS}")


def _read_table_file(
    path: Path, settings: DataSettings, classes: tuple[str, ...], stored: Preprocessing | None
) -> Dataset:
    source = open_table(path)
    if settings.label is None:
        raise UserError(f"{path}: which column is the class? Give `label`, one of {listed(source.names)}")
    known = stored.columns if stored else ()
    samples, columns, classes = read_table(
        source, label=settings.label, drop=settings.drop, categories=settings.categories, columns=known, classes=classes
    )
    if len(classes) < 2:
        raise UserError(f"{path}: column {settings.label!r} holds one class only; a classifier needs at least 2")
    if settings.test_data is None:
        train, test = hold_out(samples, settings.test_fraction, classes)
    else:
        source = open_table(settings.test_data)
        train, (test, *_) = samples, read_table(source, label=settings.label, columns=columns, classes=classes)
    return Dataset(path.stem, train, test, classes, columns=columns)
