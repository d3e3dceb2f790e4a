"""Tiny-ImageNet as it is distributed; its official validation part is the test set, as its test part has no labels."""

from pathlib import Path

from lipscale.data.dataset import Dataset, hint
from lipscale.data.memory import reading
from lipscale.data.pictures import read_pictures
from lipscale.errors import UserError


def read(folder: Path) -> Dataset:
    """200 classes, 500 training and 50 test photographs each, 64x64."""
    wnids = tuple(_lines(folder / "wnids.txt"))
    if len(set(wnids)) < len(wnids):
        raise UserError(f"{folder / 'wnids.txt'} names a class twice")
    found: list[tuple[Path, str]] = []
    for wnid in wnids:
        pictures = sorted((folder / "train" / wnid / "images").glob("*.JPEG"))
        if not pictures:
            raise UserError(f"{folder / 'train' / wnid / 'images'} holds no .JPEG; get the set again")
        found += ((path, wnid) for path in pictures)
    count = len(found)
    annotations = folder / "val" / "val_annotations.txt"
    for number, line in enumerate(_lines(annotations), 1):
        name, wnid = [*line.split("\t"), ""][:2]
        if wnid not in wnids:
            raise UserError(f"{annotations}, line {number}: unknown class {wnid[:40]!r}; {hint(wnid, wnids)}")
        if Path(name).name != name or name in ("", "..", "."):
            raise UserError(f"{annotations}, line {number}: {name[:40]!r} is no plain file name")
        found.append((folder / "val" / "images" / name, wnid))
    train, test = read_pictures(found, wnids, (3, 64, 64), fit="crop").cut(count)
    # what people call the classes: the first of each one's words; its number where two share it
    words = dict(line.split("\t", 1) for line in _lines(folder / "words.txt") if "\t" in line)
    names = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    classes = (f"{name} ({wnid})" if names.count(name) > 1 else name for name, wnid in zip(names, wnids, strict=True))
    return Dataset("tiny-imagenet", train, test, tuple(classes), augmentation="crop+flip", fit="crop")


def _lines(path: Path) -> list[str]:
    with reading(path, "text"):
        found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not found:
        raise UserError(f"{path} is empty; get the set again")
    return found
