"""Small files of every kind, for the tests of readers: good ones, for others to damage."""

import csv
import pickle
import struct

import numpy as np
import pytest
from PIL import Image

from lipscale.errors import UserError


def write_csv(path, rows, header=("a", "b", "kind", "y"), delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def table_rows(n=120, seed=0):
    """Two numbers, a category and a label that both depend on."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    kinds = [("red", "green", "blue")[(y + int(rng.random() < 0.2)) % 3] for y in labels]
    numbers = rng.normal(labels[:, None] * [2.0, -1.0], 1.0, (n, 2))
    return [
        [f"{a:.4f}", f"{1000 + 50 * b:.2f}", k, f"class{y}"]
        for (a, b), k, y in zip(numbers, kinds, labels, strict=True)
    ]


def write_picture(path, *, size=(12, 10), mode="RGB", seed=0, **options):
    rng = np.random.default_rng(seed)
    channels = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}
    if mode in channels:
        pixels = rng.integers(0, 256, (size[1], size[0], channels[mode]), dtype=np.uint8)
        picture = Image.fromarray(pixels.squeeze(2) if mode == "L" else pixels, mode)
    else:
        pixels = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        picture = Image.fromarray(pixels, "RGB").convert(mode)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **options)
    return path


def write_folder(folder, *, classes=("cat", "dog"), n=10, suffix=".png", **options):
    for c, name in enumerate(classes):
        for i in range(n):
            write_picture(folder / name / f"{i:03}{suffix}", seed=100 * c + i, **options)
    return folder


def write_tiny_imagenet(folder, *, classes=("n01", "n02"), n=3):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wnids.txt").write_text("\n".join(classes) + "\n")
    (folder / "words.txt").write_text("".join(f"{c}\tname of {c}, other name\n" for c in (*classes, "n99")))
    lines = []
    for c, wnid in enumerate(classes):
        for i in range(n):
            path = folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG"
            write_picture(path, size=(64, 64), seed=10 * c + i, mode="L" if i == 0 else "RGB")
        write_picture(folder / "val" / "images" / f"val_{c}.JPEG", size=(64, 64), seed=50 + c)
        lines.append(f"val_{c}.JPEG\t{wnid}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder


def python2_pickle(batch):
    """A dictionary as Python 2's cPickle wrote the official batches: protocol 2, byte strings, numpy's old names."""

    def text(value):
        raw = value.encode("latin-1")
        return b"U" + bytes([len(raw)]) + raw if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)) + raw

    def item(value):
        if isinstance(value, str):
            return text(value)
        if isinstance(value, int):
            return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
        if isinstance(value, list):
            return b"](" + b"".join(map(item, value)) + b"e"
        rows, columns = value.shape
        shape = b"J" + struct.pack("<i", rows) + b"J" + struct.pack("<i", columns) + b"\x86"
        dtype = (
            b"cnumpy\ndtype\n"
            + text("u1")
            + b"K\0K\1\x87R(K\3"
            + text("|")
            + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
        )
        empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text("b") + b"\x87R"
        content = b"T" + struct.pack("<i", value.size) + value.tobytes()
        return empty + b"(K\1" + shape + dtype + b"\x89" + content + b"tb"

    return b"\x80\x02}q\x01(" + b"".join(text(k) + item(v) for k, v in batch.items()) + b"u."


def write_cifar10_python(folder, *, n=20, dump=python2_pickle):
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    pixels = rng.integers(0, 256, (n, 3072), dtype=np.uint8)
    labels = [i % 10 for i in range(n)]
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        batch = {"batch_label": name, "labels": labels, "data": pixels, "filenames": [f"{i}.png" for i in range(n)]}
        (folder / name).write_bytes(dump(batch))
    names = {"label_names": [f"c{i}" for i in range(10)], "num_cases_per_batch": 10000}
    (folder / "batches.meta").write_bytes(dump(names))
    return pixels


def python3_pickle(batch):
    """The same as Python 3 writes it for Python 2."""
    return pickle.dumps({key.encode(): value for key, value in batch.items()}, protocol=2)


def refuses(action, match, *names):
    """The action ends in one short line that says what is expected and names the culprit."""
    with pytest.raises(UserError, match=match) as caught:
        action()
    text = str(caught.value)
    assert len(text.splitlines()) == 1, text
    assert len(text) < 600, text
    for name in names:
        assert name in text, text
