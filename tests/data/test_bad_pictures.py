"""Pictures and folders of them that cannot be learned from, and names that lead nowhere."""

import io
import struct

import numpy as np
import pytest
from PIL import Image
from test_bad_arrays import X, Y
from test_bad_tables import calibrated

from lipscale.data import DataSettings, load_dataset
from lipscale.errors import UserError
from makers import (
    refuses,
    write_folder,
    write_picture,
)


def png_chunk(kind, body):
    import zlib

    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_of(width, height):
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", head)
        + png_chunk(b"IDAT", b"x\x9c\x03\0\0\0\0\1")
        + png_chunk(b"IEND", b"")
    )


def encoded(mode="RGB", kind="PNG", size=(8, 8)):
    out = io.BytesIO()
    Image.new(mode, size).save(out, kind)
    return out.getvalue()


PICTURES = {
    "cut off": (encoded()[:-30], "as a picture"),
    "cut off JPEG": (encoded(kind="JPEG")[:200], "as a picture"),
    "a PNG of forty thousand pixels square": (png_of(40000, 40000), "as a picture|claims"),
    "a PNG just above the limit": (png_of(8000, 7000), "claims 8000x7000 pixels"),
    "a PNG without pixels": (png_of(8, 8), "as a picture"),
    "a PNG of size zero": (png_of(0, 0), "as a picture"),
    "sixteen bits": (encoded("I;16"), "more than 8 bits"),
    "floats": (encoded("F", "TIFF"), "more than 8 bits"),
    "32-bit integers": (encoded("I", "TIFF"), "more than 8 bits"),
    "text": (b"no picture", "as a picture"),
    "a header only": (b"\x89PNG\r\n\x1a\n", "as a picture"),
    "a GIF header only": (b"GIF89a", "as a picture"),
    "a broken checksum": (encoded()[:40] + b"\0\0\0\0" + encoded()[44:], "as a picture"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_in_a_folder(tmp_path, name):
    content, match = PICTURES[name]
    write_folder(tmp_path / "set", n=3)
    (tmp_path / "set" / "cat" / "bad.png").write_bytes(content)
    refuses(lambda: load_dataset(str(tmp_path / "set")), match, "bad.png")


def make_folder(tmp_path, case):
    folder = tmp_path / "set"
    if case == "empty":
        folder.mkdir()
    elif case == "one class":
        write_folder(folder, classes=("cat",))
    elif case == "pictures without class":
        write_folder(folder, classes=(".",))
    elif case == "an empty class":
        write_folder(folder)
        (folder / "empty").mkdir()
    elif case == "a class of texts":
        write_folder(folder)
        (folder / "texts").mkdir()
        (folder / "texts" / "a.txt").write_text("x")
    elif case == "a link into nothing":
        write_folder(folder)
        (folder / "cat" / "gone.png").symlink_to(tmp_path / "nothing")
    elif case == "a link to itself":
        write_folder(folder)
        (folder / "cat" / "loop.png").symlink_to(folder / "cat" / "loop.png")
    elif case == "a folder called picture":
        write_folder(folder)
        (folder / "cat" / "x.png").mkdir()
    elif case == "another class in the test part":
        write_folder(folder / "train")
        write_folder(folder / "test", classes=("cat", "cow"))
    elif case == "a class of one":
        write_folder(folder, n=9)
        write_picture(folder / "rare" / "a.png")
    return folder


FOLDERS = {
    "empty": "set holds 0 class folders",
    "one class": "set holds 1 class folders",
    "pictures without class": "set holds 0 class folders",
    "an empty class": "empty holds no picture",
    "a class of texts": "texts holds no picture",
    "a link into nothing": "gone.png does not exist",
    "a link to itself": "loop.png",
    "another class in the test part": "cow is no class of this set; known: cat, dog",
    "a class of one": "class 'rare' has",
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folders(tmp_path, case):
    folder = make_folder(tmp_path, case)
    refuses(lambda: calibrated(load_dataset(str(folder))), FOLDERS[case])


@pytest.mark.parametrize(
    ("test", "match"),
    [
        ("nowhere", "cannot read the folder .*nowhere: No such file"),
        ("file", "cannot read the folder .*file: Not a directory"),
        ("empty", "empty holds 0 class folders"),
    ],
)
def test_test_folders(tmp_path, test, match):
    write_folder(tmp_path / "set")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    refuses(lambda: load_dataset(DataSettings(data=str(tmp_path / "set"), test_data=tmp_path / test)), match)


NAMES = {
    "": "unknown data set ''|is no|holds",
    "cifer10": "did you mean 'cifar10'",
    "mnist2": "did you mean 'mnist'",
    "nothing.csv": "nothing.csv does not exist",
    "no/such/folder": "does not exist",
    "x" * 5000: "unknown data set",
    "a\0b": "unknown data set",
    "file.xyz": "file.xyz is no data set; expected a folder",
    "file.json": "file.json is no data set",
    "/dev/null": "is no data set",
    "tiny-imagenet": "tiny-imagenet is not in .*tiny-imagenet-200.zip in DIR and give DIR as `data_dir`",
}


@pytest.mark.parametrize("name", NAMES, ids=lambda n: n[:12].replace("\0", "NUL"))
def test_names(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for file in ("file.xyz", "file.json"):
        (tmp_path / file).write_text("{}")
    data_dir = tmp_path if name == "tiny-imagenet" else None
    with pytest.raises(UserError, match=NAMES[name]):
        load_dataset(name, data_dir)


def test_labels_and_test_parts_where_they_do_not_belong(tmp_path):
    refuses(lambda: load_dataset(DataSettings(data="digits", label="y")), "digits has its labels")
    refuses(lambda: load_dataset(DataSettings(data="digits", test_data=tmp_path)), "digits has its labels")
    write_folder(tmp_path / "set")
    refuses(lambda: load_dataset(DataSettings(data=str(tmp_path / "set"), label="y")), "`label` is for tables")
    np.savez(tmp_path / "x.npz", x=X, y=Y, x_test=X, y_test=Y)
    twice = DataSettings(data=str(tmp_path / "x.npz"), test_data=tmp_path / "x.npz")
    refuses(lambda: load_dataset(twice), "x.npz has its own test part")
    np.savez(tmp_path / "y.npz", x=X, y=Y)
    np.savez(tmp_path / "z.npz", x=X)
    missing = DataSettings(data=str(tmp_path / "y.npz"), test_data=tmp_path / "z.npz")
    refuses(lambda: load_dataset(missing), "z.npz: expected x and y")
