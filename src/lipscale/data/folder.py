"""A folder of class folders with pictures, as they come from a camera or the web."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from statistics import median_low

from lipscale.data.dataset import MOST_CLASSES, Dataset, Preprocessing, Samples, hint, hold_out
from lipscale.data.pictures import SUFFIXES, in_parallel, look, read_pictures
from lipscale.errors import UserError
from lipscale.settings import DataSettings

log = logging.getLogger("lipscale")

DEFAULT_SIDE = 64  # larger pictures are brought down to this where the settings do not say
TEST_NAMES = {"test", "val", "valid", "validation"}


def read_folder(
    folder: Path, settings: DataSettings, *, classes: tuple[str, ...] = (), stored: Preprocessing | None = None
) -> Dataset:
    """FOLDER/CLASS/*.jpg (or any picture), the test part in `test_data`, in FOLDER/test, or a stratified share.

    With a run's `classes` and `stored` preprocessing pictures are read as that run's were.
    """
    train, test = _parts(folder, settings.test_data)
    found = _list_pictures(train, classes)
    classes = classes or tuple(dict.fromkeys(name for _, name in found))
    looks = in_parallel(look, [path for path, _ in found])
    shape = stored.input_shape if stored else choose_shape(looks, settings)
    fit = stored.fit if stored else settings.image_fit
    count = len(found)
    if test is not None:
        found += _list_pictures(test, classes)
    # one array for both parts, so that one file serves where they do not fit in memory
    samples = read_pictures(found, classes, shape, fit=fit)
    parts = hold_out(samples, settings.test_fraction, classes) if test is None else samples.cut(count)
    return Dataset(folder.name, *parts, classes, augmentation="crop+flip", fit=fit)


def read_class_folders(folder: Path, classes: tuple[str, ...], shape: tuple[int, ...], *, fit: str) -> Samples:
    """FOLDER/CLASS/*.jpg in one piece, of classes, a size and a fit that are known already."""
    return read_pictures(_list_pictures(folder, classes), classes, shape, fit=fit)


def _parts(folder: Path, test: Path | None) -> tuple[Path, Path | None]:
    """The folders of the two parts: FOLDER/train and FOLDER/test where there is nothing else, else FOLDER itself."""
    if test is not None:
        return folder, test
    names = {entry.name for entry in _folders(folder)}
    tests = names & TEST_NAMES
    if len(tests) == 1 and names == {"train"} | tests and _folders(folder / "train"):
        return folder / "train", folder / tests.pop()
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


def _list_pictures(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, str]]:
    """The pictures below a folder's class folders, each with its class; where these are known, no other may come."""
    found = _folders(folder)
    if not (1 if classes else 2) <= len(found) <= MOST_CLASSES:
        expected = f"expected one for each class, such as cat/ and dog/ in it, and at most {MOST_CLASSES}"
        raise UserError(f"{folder} holds {len(found)} class folders; {expected}")
    for entry in found:
        if classes and entry.name not in classes:
            raise UserError(f"{entry} is no class of this set; {hint(entry.name, classes)}")
    return [(path, entry.name) for entry in found for path in pictures_below(entry)]


def pictures_below(folder: Path) -> list[Path]:
    """All pictures below a folder, in order; links to other folders are not followed."""
    files = [Path(base) / name for base, _, names in os.walk(folder) for name in names if not name.startswith(".")]
    found = [path for path in files if path.name.lower().endswith(SUFFIXES)]
    if not found:
        raise UserError(f"{folder} holds no picture ({', '.join(SUFFIXES[:4])}, ...); fill or remove it")
    if other := set(files).difference(found):
        log.warning(f"{folder}: {len(other)} files are no pictures and left out, such as {min(other).name}")
    return sorted(found, key=lambda path: (path.parent.parts, path.name))


def choose_shape(looks: Iterable[tuple[tuple[int, int], bool]], settings: DataSettings) -> tuple[int, ...]:
    """(C, H, W): as the settings say, else the size and colour that the pictures have, within reason."""
    sizes, greys = zip(*looks, strict=True)
    color = settings.image_color
    channels = 1 if color == "grey" or (color == "auto" and all(greys)) else 3
    if settings.image_size is not None:
        return channels, settings.image_size, settings.image_size
    if len(set(sizes)) == 1 and max(sizes[0]) <= DEFAULT_SIDE:
        return channels, *sizes[0]
    side = min(DEFAULT_SIDE, median_low(map(min, sizes)))
    side = max(4, side // 4 * 4)  # small sides fill the networks' grids well
    return channels, side, side
