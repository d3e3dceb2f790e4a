"""Tiny-ImageNet as it is distributed; its official validation part is the test set, as its test part has no labels."""

import difflib
from pathlib import Path

import torch

from lipscale.data.dataset import Dataset, Samples
from lipscale.data.pictures import read_pictures
from lipscale.errors import UserError

SHAPE = (3, 64, 64)


def read(folder: Path) -> Dataset:
    """200 classes, 500 training and 50 test photographs each, 64x64."""
    wnids = _lines(folder / "wnids.txt")
    known = {wnid: i for i, wnid in enumerate(wnids)}
    if len(known) < len(wnids):
        raise UserError(f"{folder / 'wnids.txt'} names a class twice")
    paths: list[Path] = []
    labels: list[int] = []
    for wnid in wnids:
        pictures = sorted((folder / "train" / wnid / "images").glob("*.JPEG"))
        if not pictures:
            raise UserError(f"{folder / 'train' / wnid / 'images'} holds no .JPEG; get the set again")
        paths += pictures
        labels += [known[wnid]] * len(pictures)
    count = len(paths)
    annotations = folder / "val" / "val_annotations.txt"
    for number, line in enumerate(_lines(annotations), 1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in known:
            nearest = difflib.get_close_matches(wnid, wnids, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else "expected FILE, tab, CLASS as in wnids.txt"
            raise UserError(f"{annotations}, line {number}: unknown class {wnid[:40]!r}; {hint}")
        if Path(name).name != name or name in ("", "..", "."):
            raise UserError(f"{annotations}, line {number}: {name[:40]!r} is no plain file name")
        paths.append(folder / "val" / "images" / name)
        labels.append(known[wnid])
    samples = Samples(read_pictures(paths, SHAPE, fit="crop"), torch.tensor(labels))
    every = torch.arange(len(samples))
    classes = _names(folder / "words.txt", wnids)
    train, test = samples.take(every[:count]), samples.take(every[count:])
    return Dataset("tiny-imagenet", train, test, classes, augmentation="crop+flip", fit="crop")


def _lines(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    found = [line for line in lines if line]
    if not found:
        raise UserError(f"{path} is empty; get the set again")
    return found


def _names(path: Path, wnids: list[str]) -> tuple[str, ...]:
    """What people call the classes: the first of each one's words; its number where two share it."""
    words = dict(line.split("\t", 1) for line in _lines(path) if "\t" in line)
    names = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    return tuple(f"{name} ({wnid})" if names.count(name) > 1 else name for name, wnid in zip(names, wnids, strict=True))
