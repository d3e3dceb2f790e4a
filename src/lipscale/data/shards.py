"""Data in several files, a folder of .npz or Parquet files or a pattern of their names: inputs stay on disk."""

import os
import re
from collections.abc import Sequence
from glob import glob
from pathlib import Path

from lipscale.data.arrays import class_names
from lipscale.data.dataset import Column, Dataset, Preprocessing, Samples, hold_out, listed
from lipscale.data.folder import TEST_NAMES
from lipscale.data.npz_shards import read_npz_shards
from lipscale.data.parquet_shards import ParquetShards, open_shards, picture_column, picture_shape, read_pictures
from lipscale.data.table import read_table
from lipscale.data.table_file import PARQUET
from lipscale.errors import UserError
from lipscale.settings import DataSettings

SUFFIXES = (".npz", *PARQUET)


def find_shards(data: str | Path) -> list[Path]:
    """The files of a folder or of a pattern (such as shards/train-*.npz), by name; none where it is something else."""
    path = Path(data).expanduser()
    if os.path.isdir(path):
        try:
            entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
        except OSError as error:
            raise UserError(f"cannot read the folder {path}: {error.strerror}") from error
        has_folders = any(entry.is_dir() for entry in entries)  # of classes
        return [] if has_folders else sorted(entry for entry in entries if entry.suffix.lower() in SUFFIXES)
    if os.path.exists(path) or not re.search(r"[*?\[]", str(data)):
        return []
    found = sorted(map(Path, glob(str(path))))
    if not found:
        raise UserError(f"no file is called like {data}")
    return found


def read_shards(
    found: Sequence[Path],
    settings: DataSettings,
    *,
    classes: tuple[str, ...] = (),
    stored: Preprocessing | None = None,
) -> Dataset:
    """All files as one set. Test files are those of `test_data`, or those called test-... beside train-...

    Where there are none, a stratified share is held out.
    """
    train, test = _parts(found, settings)
    kinds = {".parquet" if path.suffix.lower() in PARQUET else path.suffix.lower() for path in (*train, *test)}
    if kinds == {".npz"}:
        return _arrays(train, test, settings)
    if kinds != {".parquet"}:
        raise UserError(
            f"{found[0].parent}: expected .npz files or Parquet files alone, got {', '.join(sorted(kinds))}"
        )
    if settings.label is None:
        known = listed(open_shards(train[:1], train[0]).names)
        raise UserError(f"{train[0]}: which column is the class? Give `label`, one of {known}")
    sources = [open_shards(part, part[0].parent) for part in (train, test) if part]
    column = picture_column(train[0], settings)
    if column is None:
        return _table(sources, settings, classes, stored.columns if stored else ())
    return _pictures(sources, column, settings, classes, stored)


def _arrays(train: Sequence[Path], test: Sequence[Path], settings: DataSettings) -> Dataset:
    if settings.label is not None:
        raise UserError(f"`label` is for tables (.csv, .parquet), and {train[0]} has its labels in y")
    samples, names = read_npz_shards(train)
    classes = class_names(samples.labels, names, str(train[0].parent))
    rest = [read_npz_shards(test)[0]] if test else []
    return Dataset(_name(train), *_held_out([samples, *rest], settings, classes), classes)


def _table(
    sources: Sequence[ParquetShards], settings: DataSettings, classes: tuple[str, ...], columns: tuple[Column, ...]
) -> Dataset:
    samples, columns, classes = read_table(sources[0], settings, columns=columns, classes=classes)
    rest = [read_table(source, settings, columns=columns, classes=classes)[0] for source in sources[1:]]
    parts = _held_out([samples, *rest], settings, classes)
    return Dataset(_name(sources[0].paths), *parts, classes, columns=columns)


def _pictures(
    sources: Sequence[ParquetShards],
    column: str,
    settings: DataSettings,
    classes: tuple[str, ...],
    stored: Preprocessing | None,
) -> Dataset:
    shape = stored.input_shape if stored else picture_shape(sources[0], column, settings)
    fit = stored.fit if stored else settings.image_fit
    samples = []
    for source in sources:
        found, classes = read_pictures(source, column, settings, classes=classes, shape=shape, fit=fit)
        samples.append(found)
    parts = _held_out(samples, settings, classes)
    return Dataset(_name(sources[0].paths), *parts, classes, augmentation="crop+flip", fit=fit)


def _parts(found: Sequence[Path], settings: DataSettings) -> tuple[list[Path], list[Path]]:
    """The files of the two parts."""
    if settings.test_data is not None:
        return [*found], find_shards(settings.test_data) or [settings.test_data]
    words = {path: re.split(r"[^a-z]", path.name.lower())[0] for path in found}
    tests = TEST_NAMES.intersection(words.values())
    if not tests or "train" not in words.values():
        return [*found], []
    if len(tests) > 1 or {*words.values()} != {"train", *tests}:
        listing = ", ".join(f"{word}-..." for word in sorted({*words.values()}))
        raise UserError(f"{found[0].parent} holds {listing}: give one part by a pattern, and another as `test_data`")
    return [p for p in found if words[p] == "train"], [p for p in found if words[p] in tests]


def _held_out(parts: list[Samples], settings: DataSettings, classes: tuple[str, ...]) -> tuple[Samples, Samples]:
    return hold_out(parts[0], settings.test_fraction, classes) if len(parts) == 1 else (parts[0], parts[1])


def _name(paths: Sequence[Path]) -> str:
    return (paths[0].parent.name if len(paths) > 1 else paths[0].stem) or "shards"
