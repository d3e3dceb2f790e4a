"""A folder of class folders with pictures, as they come from a camera or the web."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

import torch

from lipscale.data.dataset import MOST_CLASSES, Dataset, Preprocessing, Samples, hold_out
from lipscale.data.pictures import SUFFIXES, Look, look_at_all, read_pictures
from lipscale.errors import UserError
from lipscale.settings import DataSettings

log = logging.getLogger("lipscale")

DEFAULT_SIDE = 64  # larger pictures are brought down to this where the settings do not say
TEST_NAMES = ("test", "val", "valid", "validation")


@dataclass(frozen=True)
class Pictures:
    """Picture files and the class of each."""

    paths: list[Path]
    labels: list[int]
    classes: tuple[str, ...]


def read_folder(
    folder: Path, settings: DataSettings, *, classes: tuple[str, ...] = (), stored: Preprocessing | None = None
) -> Dataset:
    """FOLDER/CLASS/*.jpg (or any picture), the test part in `test_data`, in FOLDER/test, or a stratified share.

    With a run's `classes` and `stored` preprocessing pictures are read as that run's were.
    """
    train, test = _parts(folder, settings.test_data)
    found = list_pictures(train, classes)
    held_out = list_pictures(test, found.classes) if test is not None else None
    paths = [*found.paths, *(held_out.paths if held_out else ())]
    fit = stored.fit if stored else settings.image_fit
    shape = stored.input_shape if stored else ()
    shape = shape or choose_shape(look_at_all(found.paths), settings.image_size, settings.image_color)
    # one array for both parts, so that one file serves where they do not fit in memory
    inputs = read_pictures(paths, shape, fit=fit)
    labels = torch.tensor([*found.labels, *(held_out.labels if held_out else ())])
    samples = Samples(inputs, labels)
    if held_out is None:
        train_part, test_part = hold_out(samples, settings.test_fraction, found.classes)
    else:
        every = torch.arange(len(samples))
        train_part, test_part = samples.take(every[: len(found.paths)]), samples.take(every[len(found.paths) :])
    return Dataset(folder.name, train_part, test_part, found.classes, augmentation="crop+flip", fit=fit)


def _parts(folder: Path, test: Path | None) -> tuple[Path, Path | None]:
    """The folders of the two parts: FOLDER/train and FOLDER/test where there is nothing else, else FOLDER itself."""
    if test is not None:
        if not test.is_dir():
            raise UserError(f"the test data {test} {'is no folder' if test.exists() else 'does not exist'}")
        return folder, test
    names = {entry.name for entry in _folders(folder)}
    tests = [name for name in TEST_NAMES if name in names]
    if len(tests) == 1 and names == {"train", tests[0]} and any(_folders(folder / "train")):
        return folder / "train", folder / tests[0]
    return folder, None


def _folders(folder: Path) -> list[Path]:
    try:
        found = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"cannot read the folder {folder}: {error.strerror}") from error
    for entry in found:
        if entry.is_symlink():  # it may lead anywhere, and back
            raise UserError(f"{entry} is a link to a folder, which is not followed; put the folder itself there")
    return found


def list_pictures(folder: Path, classes: tuple[str, ...] = ()) -> Pictures:
    """The pictures below a folder's class folders; where the classes are known, no other may come."""
    found = _folders(folder)
    if not classes and len(found) < 2:
        raise UserError(
            f"{folder} holds {len(found)} class folders; expected one for each class, such as cat/ and dog/ in it"
        )
    if len(found) > MOST_CLASSES:
        raise UserError(f"{folder} holds {len(found)} class folders; give at most {MOST_CLASSES}")
    names = classes or tuple(entry.name for entry in found)
    paths: list[Path] = []
    labels: list[int] = []
    for entry in found:
        if entry.name not in names:
            raise UserError(f"{entry} is no class of this set; known: {', '.join(names[:12])}")
        pictures = _pictures(entry)
        if not pictures:
            raise UserError(f"{entry} holds no picture ({', '.join(SUFFIXES[:4])}, ...); fill or remove it")
        paths += pictures
        labels += [names.index(entry.name)] * len(pictures)
    if not paths:
        raise UserError(f"{folder} holds no class folder with pictures")
    return Pictures(paths, labels, names)


def _pictures(folder: Path) -> list[Path]:
    """All pictures below a folder, in order; links to other folders are not followed."""
    found: list[Path] = []
    other: list[Path] = []
    for base, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            if not name.startswith("."):
                (found if name.lower().endswith(SUFFIXES) else other).append(Path(base) / name)
    if other:
        log.warning(f"{folder}: {len(other)} files are no pictures and left out, such as {other[0].name}")
    return found


def choose_shape(looks: Sequence[Look], size: int | None, color: str) -> tuple[int, int, int]:
    """(C, H, W): as the settings say, else the size and colour that the pictures have, within reason."""
    grey = all(one.grey for one in looks) if color == "auto" else color == "grey"
    sizes = {(one.height, one.width) for one in looks}
    if size is not None:
        height = width = size
    elif len(sizes) == 1 and max(next(iter(sizes))) <= DEFAULT_SIDE:
        height, width = next(iter(sizes))
    else:
        side = median_low([min(one.height, one.width) for one in looks])
        height = width = max(4, min(DEFAULT_SIDE, side) // 4 * 4)  # a multiple of the small network's total stride
    return (1 if grey else 3), height, width
