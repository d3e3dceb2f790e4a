"""Real data sets by name, and users' own pictures, tables and arrays by path.

A new named set is one small file with a function from a folder to a Dataset, and one line in READERS. A new kind of
file is one small file, and a line in `_read_own`.
"""

import difflib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lipscale.data import arrays, cifar, digits, idx, tiny_imagenet
from lipscale.data.csv_file import open_csv
from lipscale.data.dataset import (
    DEVIATIONS,
    PIXELS,
    Column,
    Dataset,
    Preprocessing,
    Samples,
    as_input,
    hold_out,
    limit,
    split_calibration,
    stratified,
)
from lipscale.data.encode import encode, prepare
from lipscale.data.folder import read_folder
from lipscale.data.parquet_file import open_parquet
from lipscale.data.stored import Stored
from lipscale.data.table import Source, read_table, shortened
from lipscale.errors import UserError

__all__ = [
    "DEVIATIONS",
    "PIXELS",
    "READERS",
    "TABLES",
    "Column",
    "Dataset",
    "Preprocessing",
    "Reading",
    "Samples",
    "Stored",
    "as_input",
    "encode",
    "find_folder",
    "limit",
    "load_dataset",
    "open_table",
    "prepare",
    "read_table",
    "split_calibration",
    "stratified",
]

ENVIRONMENT = "LIPSCALE_DATA"
OWN_FOLDER = "~/.local/share/lipscale"  # where `lipscale data get` puts things
SYSTEM_FOLDERS = ("/usr/share/datasets", OWN_FOLDER, "data")
TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq")
OWN_KINDS = "a folder of class folders with pictures, a .csv or .parquet table, or an .npz file"


@dataclass(frozen=True)
class Reading:
    """How to read a user's own data: what the settings say, and what a run has stored already."""

    label: str | None = None
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    test_data: Path | None = None
    test_fraction: float = 0.2
    image_size: int | None = None
    image_fit: str = "crop"
    image_color: str = "auto"
    classes: tuple[str, ...] = ()  # of a run that exists
    stored: Preprocessing | None = None  # of a run that exists


@dataclass(frozen=True)
class Reader:
    """How to read one named set and how to come by it."""

    read: Callable[[Path], Dataset]
    about: str
    layouts: tuple[tuple[str, tuple[str, ...]], ...] = ()  # usual folders below a data folder, and what must be in them
    get: str = ""  # what to tell people who do not have it


CIFAR10_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
IDX_LAYOUT = "the four idx files (train-images-idx3-ubyte, ..., plain or .gz)"
READERS = {
    "digits": Reader(digits.read, "1,797 handwritten digits, 8x8, 10 classes; embedded"),
    "mnist": Reader(
        idx.read_mnist,
        "70,000 handwritten digits, 28x28, 10 classes",
        (("mnist", idx.FILES),),
        f"'lipscale data get mnist', or put {IDX_LAYOUT} into DIR/mnist and pass --data-dir DIR",
    ),
    "fashion-mnist": Reader(
        idx.read_fashion_mnist,
        "70,000 pictures of clothes, 28x28, 10 classes",
        (("fashion-mnist", idx.FILES),),
        f"'lipscale data get fashion-mnist', 'apt-get install dataset-fashion-mnist' on Debian, or put {IDX_LAYOUT} "
        "into DIR/fashion-mnist and pass --data-dir DIR",
    ),
    "cifar10": Reader(
        cifar.read_cifar10,
        "60,000 photographs, 32x32, 10 classes",
        (
            ("cifar-10-batches-bin", (*(f"{name}.bin" for name in CIFAR10_BATCHES), "batches.meta.txt")),
            ("cifar-10-batches-py", (*CIFAR10_BATCHES, "batches.meta")),
        ),
        "'lipscale data get cifar10', or unpack the official cifar-10-binary.tar.gz or cifar-10-python.tar.gz in DIR "
        "and pass --data-dir DIR",
    ),
    "cifar100": Reader(
        cifar.read_cifar100,
        "60,000 photographs, 32x32, 100 classes",
        (
            ("cifar-100-binary", ("train.bin", "test.bin", "fine_label_names.txt")),
            ("cifar-100-python", ("train", "test", "meta")),
        ),
        "'lipscale data get cifar100', or unpack the official cifar-100-binary.tar.gz or cifar-100-python.tar.gz in "
        "DIR and pass --data-dir DIR",
    ),
    "tiny-imagenet": Reader(
        tiny_imagenet.read,
        "110,000 photographs, 64x64, 200 classes; the validation part is the test set",
        (("tiny-imagenet-200", ("wnids.txt", "words.txt", "val/val_annotations.txt")),),
        "'lipscale data get tiny-imagenet', or unpack the official tiny-imagenet-200.zip in DIR and pass "
        "--data-dir DIR",
    ),
}


def load_dataset(data: str, data_dir: Path | None = None, reading: Reading = Reading()) -> Dataset:  # noqa: B008 (frozen)
    """A named set, or the user's own at a path."""
    if data in READERS:
        if reading.label is not None or reading.test_data is not None:
            raise UserError(f"{data} has its labels and its test part; leave --label and --test-data out")
        folder = find_folder(data, data_dir)
        if folder is None:
            searched = ", ".join(map(str, _data_folders(data_dir)))
            raise UserError(f"{data} is not in any of {searched}: {READERS[data].get}")
        return READERS[data].read(folder)
    path = Path(data).expanduser()
    if _exists(path):
        return _read_own(path, reading)
    if path.suffix or len(path.parts) > 1:
        raise UserError(f"{data} does not exist")
    nearest = difflib.get_close_matches(data, READERS, n=1)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    raise UserError(f"unknown data set {data!r}; {hint}Known: {', '.join(READERS)}, or the path of {OWN_KINDS}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long or with a NUL
        return False


def _read_own(path: Path, reading: Reading) -> Dataset:
    stored = reading.stored
    if path.suffix.lower() in TABLES:
        return _read_table_file(path, reading)
    if reading.label is not None:
        raise UserError(f"--label is for tables (.csv, .parquet), and {path} is none")
    if path.is_dir():
        return read_folder(
            path,
            test=reading.test_data,
            test_fraction=reading.test_fraction,
            size=reading.image_size,
            fit=stored.fit if stored else reading.image_fit,
            color=reading.image_color,
            shape=stored.input_shape if stored else (),
            classes=reading.classes,
        )
    if path.suffix.lower() == ".npz":
        return arrays.read(path, test=reading.test_data, test_fraction=reading.test_fraction)
    raise UserError(f"{path} is no data set; expected {OWN_KINDS}")


def open_table(path: Path) -> Source:
    """A table with named columns."""
    if not path.is_file():
        raise UserError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}")
    return open_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else open_csv(path)


def _read_table_file(path: Path, reading: Reading) -> Dataset:
    source = open_table(path)
    if reading.label is None:
        raise UserError(f"{path}: which column is the class? Give --label, one of {shortened(source.names)}")
    columns = reading.stored.columns if reading.stored else ()
    table = read_table(
        source,
        label=reading.label,
        drop=reading.drop,
        categories=reading.categories,
        columns=columns,
        classes=reading.classes,
    )
    assert table.labels is not None
    samples = Samples(table.rows, table.labels)
    if len(table.classes) < 2:
        raise UserError(f"{path}: column {reading.label!r} holds one class only; a classifier needs at least 2")
    if reading.test_data is not None:
        source = open_table(reading.test_data)
        held_out = read_table(source, label=reading.label, columns=table.columns, classes=table.classes)
        assert held_out.labels is not None
        train, test = samples, Samples(held_out.rows, held_out.labels)
    else:
        train, test = hold_out(samples, reading.test_fraction, table.classes)
    return Dataset(path.stem, train, test, table.classes, columns=table.columns)


def find_folder(name: str, data_dir: Path | None = None) -> Path | None:
    """Where a named set's files are: in a data folder itself or in the set's usual folder below it."""
    reader = READERS[name]
    if not reader.layouts:
        return Path()
    mine = {folder for folder, _ in reader.layouts}
    others = {folder for other in READERS.values() for folder, _ in other.layouts} - mine
    bases = list(_data_folders(data_dir))
    for folder, files in reader.layouts:
        # the base itself will do, but not where it is another set's: MNIST and Fashion-MNIST have the same file names
        candidates = [*(base / folder for base in bases), *(base for base in bases if base.name not in others)]
        for candidate in candidates:
            if _has(candidate, files):
                return candidate
    return None


def _data_folders(data_dir: Path | None) -> Iterator[Path]:
    if data_dir is not None:
        yield data_dir  # asked for by name: look nowhere else
        return
    if os.environ.get(ENVIRONMENT):
        yield Path(os.environ[ENVIRONMENT])
    yield from (Path(folder).expanduser() for folder in SYSTEM_FOLDERS)


def _has(folder: Path, files: tuple[str, ...]) -> bool:
    return all(idx.find(folder, file).is_file() for file in files)
