"""A table of bad inputs. Each must end in one line that names the file, row or key; nothing else may be raised.

The readers are called in this process, which makes the table fast; some of the same go through the console script in
test_cli.py. Archives and servers that misbehave are in test_download.py.
"""

import gzip
import io
import json
import pickle
import shutil
import struct
import zipfile
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import lipscale
from lipscale.data import Column, DataSettings, Preprocessing, load_dataset
from lipscale.data.idx import read_idx
from lipscale.data.plain_pickle import read_plain_pickle
from lipscale.errors import UserError
from lipscale.runs import load, resume
from lipscale.runs.predict import read_inputs
from lipscale.runs.settings_file import read_settings
from lipscale.settings import Settings
from makers import (
    python2_pickle,
    table_rows,
    write_cifar10_python,
    write_csv,
    write_folder,
    write_picture,
    write_tiny_imagenet,
)


def refuses(action, match, *names):
    """The action ends in one short line that says what is expected and names the culprit."""
    with pytest.raises(UserError, match=match) as caught:
        action()
    text = str(caught.value)
    assert len(text.splitlines()) == 1, text
    assert len(text) < 600, text
    for name in names:
        assert name in text, text


def lines(*rows):
    return "\n".join(rows) + "\n"


GOOD = [f"{i}.5,{i % 3},k{i % 2},c{i % 2}" for i in range(30)]
HEAD = "a,b,kind,y"
CSV = {
    "nothing": ("", "line 1: expected the names"),
    "only blank lines": ("\n\n\n", "line 1: expected the names"),
    "only a header": (HEAD + "\n", "no row below"),
    "no header": (lines(*GOOD).replace("k", "").replace("c", ""), "line 1: expected the names of the columns, got '"),
    "no label column": (lines("a,b,kind,z", *GOOD), "no column 'y'.*known: a, b, kind, z"),
    "a label column misspelt": (lines("a,b,kind,Y ", *GOOD), "no column 'y'"),
    "two columns of one name": (lines("a,a,kind,y", *GOOD), "two columns are called 'a'"),
    "a column without a name": (lines("a,,kind,y", *GOOD), "column 2 has no name"),
    "a row too short": (lines(HEAD, *GOOD[:5], "1,2,k0"), "line 7: expected 4 cells .* got 3"),
    "a row too long": (lines(HEAD, *GOOD[:5], "1,2,k0,c0,9"), "line 7: expected 4 cells .* got 5"),
    "decimal commas": (lines(HEAD, "1,5,2,k0,c0"), "line 2: expected 4 cells"),
    "a number misspelt": (lines(HEAD, *GOOD, "1o,2,k0,c0"), "line 32: column 'a' holds numbers but here '1o'"),
    "a number with a unit": (lines(HEAD, *GOOD[:20], "12 cm,2,k0,c0"), "line 22: column 'a' .*'12 cm'"),
    "an infinite number": (lines(HEAD, *GOOD, "inf,2,k0,c0"), "line 32: column 'a' holds an infinite"),
    "a number too large": (lines(HEAD, *GOOD, "1e999,2,k0,c0"), "line 32: column 'a' holds an infinite"),
    "minus infinity": (lines(HEAD, "-Infinity,2,k0,c0", *GOOD), "line 2: column 'a' holds an infinite"),
    "a label missing": (lines(HEAD, *GOOD[:9], "1,2,k0,"), "line 11: column 'y' lacks the label"),
    "a label NA": (lines(HEAD, *GOOD[:9], "1,2,k0,NA"), "line 11: column 'y' lacks the label"),
    "a label misspelt once": (
        lines("a,kind,y", *(f"{i},k,cl{'ass'}{i % 2}" for i in range(20)), "1,k,clas1"),
        "line 22: column 'y' has the label 'clas1', which occurs only once; did you mean 'class1'",
    ),
    "a label once": (
        lines(HEAD, *GOOD, "1,2,k0,zebra"),
        "line 32: column 'y' has the label 'zebra', which occurs only once",
    ),
    "one class": (lines("a,y", *(f"{i},same" for i in range(20))), "'y' has 1 different values"),
    "labels that are numbers": (
        lines("a,y", *(f"{i},{i}.25" for i in range(1500))),
        "'y' is a quantity .1500 different numbers, 0.25 to 1499.25.* 2 to 1000 classes: .*up to 749.75 and above",
    ),
    "two samples": (lines("a,y", "1,p", "2,q"), "occurs only once"),
    "a column of names": (
        lines("name,y", *(f"person {i},{i % 2}" for i in range(150))),
        "every column but the label is different in each row.*nothing to learn from",
    ),
    "a column of many names": (
        lines("name,y", *(f"person {i // 2},{i % 2}" for i in range(300))),
        "column 'name' has more than 100 different texts, 150; .*`drop`",
    ),
    "many zip codes": (
        lines("zip,y", *(f"0{1000 + i // 2},{i % 2}" for i in range(300))),
        "column 'zip' has more than 100 different codes with leading zeros, 150; .*`drop`",
    ),
    "several bad columns": (
        lines("a,b,c,name,y", *(f"{i}.5,,x{'' if i else 'x' * 2000},n{i // 2},{i % 2}" for i in range(300))),
        "3 columns cannot be read: 'b' is empty; 'c' holds a text of 2001 .*line 2.; 'name' has more.*`drop` b,c,name",
    ),
    "thousands or decimals": (
        lines("a,y", *(f'"{i + 1},234",{i % 2}' for i in range(20))),
        "column 'a' holds numbers such as '1,234': thousands or decimals.*1234 or 1.234",
    ),
    "a date misspelt": (
        lines("a,y", *(f"2024-01-{i % 28 + 1:02},{i % 2}" for i in range(28)), "2024-01-99,0"),
        "line 30: column 'a' holds dates but here '2024-01-99'",
    ),
    "prices for labels": (
        lines("a,y", *(f"{i % 7},{100 * i}" for i in range(90))),
        "'y' is a quantity .90 different numbers, 0 to 8900",
    ),
    "an empty column": (lines("a,b,y", *(f"{i},,{i % 2}" for i in range(20))), "column 'b' is empty; .*`drop`"),
    "only the label": (lines("y", *(f"c{i % 2}" for i in range(20))), "nothing to learn from"),
    "a quote that never ends": (lines(HEAD, *GOOD[:3], '"1,2,k0,c0'), "as a CSV file"),
    "quotes in the middle": (lines(HEAD, *GOOD[:3], '"1"x,2,k0,c0'), "as a CSV file"),
    "a cell of a megabyte": (lines(HEAD, *GOOD, "1,2," + "k" * 10**6 + ",c0"), "as a CSV file .*field larger"),
    "a header of a megabyte": ("a" * (1 << 20) + ",y\n1,2\n", "line 1 is longer"),
    "latin-1": (
        lines(HEAD, *GOOD, "1,2,käse,c0").encode("latin-1"),
        "as a CSV file.*'utf-8' codec can't decode byte 0xe4",
    ),
    "UTF-16": (lines(HEAD, *GOOD).encode("utf-16"), "as a CSV file in UTF-8 .*'utf-8' codec"),
    "a zip": (b"PK\x03\x04" + bytes(range(256)), "'utf-8' codec|no column"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(100), "as a CSV file in UTF-8 .*'utf-8' codec"),
    "a spreadsheet": (b"\xd0\xcf\x11\xe0" + bytes(500), "as a CSV file in UTF-8 .*'utf-8' codec"),
    "NULs": (bytes(1000), "no column 'y'|as a CSV"),
    "JSON": ('{"a": 1, "y": 2}\n', "no column 'y'"),
    "HTML": ("<html><body>Not found</body></html>\n", "no column 'y'"),
    "a class of two in a large table": (
        lines("a,y", *(f"{i},common" for i in range(200)), "1,rare", "2,rare"),
        None,
    ),
}


def calibrated(dataset):
    """As a run does: prepare, then split."""
    from lipscale.data import prepare, split_calibration

    ready, _ = prepare(dataset)
    split_calibration(ready.train, 0.1, seed=0, classes=ready.classes)


@pytest.mark.parametrize("name", CSV)
def test_tables(tmp_path, name):
    content, match = CSV[name]
    path = tmp_path / "bad.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    # the way through prepare finds what the reader alone cannot know
    late = {
        "a class of two in a large table": "class 'rare' has no (calibration|training) sample.*needs about 10",
    }
    whole = late.get(name)
    settings = DataSettings(data=str(path), label="y")
    refuses(lambda: calibrated(load_dataset(settings)), whole or match, *([] if whole else ["bad.csv"]))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "which column is the class. Give `label`, one of a, b, kind, y"),
        ({"label": "kindd"}, "no column 'kindd'.*did you mean 'kind'"),
        ({"label": "y", "drop": ("id",)}, "no column 'id' .`drop`."),
        ({"label": "y", "drop": ("a", "b", "kind")}, "nothing to learn from"),
        ({"label": "y", "categories": ("kin",)}, "no column 'kin' .a category.*did you mean 'kind'"),
        ({"label": "y", "test_data": "none.csv"}, "none.csv does not exist"),
        ({"label": "y", "test_data": "."}, "is a folder"),
        ({"label": "y", "test_data": "other.csv"}, "other.csv has no column 'y'"),
        ({"label": "y", "test_data": "lacks.csv"}, "lacks.csv has no column 'kind'"),
        (
            {"label": "y", "test_data": "typo.csv"},
            "typo.csv, line 3: column 'y' has the unknown label 'cc1'; did you mean 'c1'",
        ),
        ({"label": "y", "test_data": "text.csv"}, "text.csv, line 2: column 'a' holds numbers but here 'x'"),
        ({"label": "y", "test_data": "empty.csv"}, "empty.csv holds no row"),
    ],
)
def test_table_options(tmp_path, monkeypatch, options, match):
    monkeypatch.chdir(tmp_path)
    good = tmp_path / "good.csv"
    good.write_text(lines(HEAD, *GOOD))
    (tmp_path / "other.csv").write_text("p,q\n1,2\n")
    (tmp_path / "lacks.csv").write_text("a,b,y\n1,2,c0\n")
    (tmp_path / "typo.csv").write_text(lines(HEAD, GOOD[0], "1,2,k0,cc1"))
    (tmp_path / "text.csv").write_text(lines(HEAD, "x,2,k0,c1"))
    (tmp_path / "empty.csv").write_text(HEAD + "\n")
    if "test_data" in options:
        options = {**options, "test_data": tmp_path / options["test_data"]}
    refuses(lambda: load_dataset(DataSettings(data=str(good), **options)), match)


def parquet_bytes(columns, **options):
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, **options)
    return out.getvalue()


def good_parquet():
    return parquet_bytes({"a": [float(i) for i in range(40)], "y": [f"c{i % 2}" for i in range(40)]})


PARQUET = {
    "nothing": (b"", "as a Parquet file"),
    "junk": (b"PAR1" + bytes(100) + b"PAR1", "as a Parquet file"),
    "only magic": (b"PAR1", "as a Parquet file"),
    "cut off": (good_parquet()[:-20], "as a Parquet file"),
    "beginning cut off": (good_parquet()[20:], "Parquet file"),
    "a csv": (lines(HEAD, *GOOD).encode(), "as a Parquet file"),
    "footer too long": (good_parquet()[:-8] + b"\xff\xff\xff\x7fPAR1", "as a Parquet file"),
    "footer negative": (good_parquet()[:-8] + b"\xff\xff\xff\xffPAR1", "as a Parquet file"),
    "data overwritten": (good_parquet()[:4] + b"\xff" * 150 + good_parquet()[154:], "as a Parquet file, it is damaged"),
    "no rows": (parquet_bytes({"a": pa.array([], pa.float64()), "y": pa.array([], pa.string())}), "no row below"),
    "no label": (parquet_bytes({"a": [1.0, 2.0], "b": [1, 2]}), "no column 'y'"),
    "several bad columns": (
        parquet_bytes({"t": [[1], [2]], "u": [b"x", b"y"], "y": ["a", "b"]}),
        "2 columns cannot be read: 't' holds list.*; 'u' holds binary.*`drop` t,u",
    ),
    "lists": (parquet_bytes({"t": [[1], [2]], "y": ["a", "b"]}), "column 't' holds list"),
    "structures": (parquet_bytes({"t": [{"p": 1}] * 2, "y": ["a", "b"]}), "column 't' holds struct"),
    "bytes": (parquet_bytes({"t": [b"x", b"y"], "y": ["a", "b"]}), "column 't' holds binary"),
    "durations": (parquet_bytes({"t": pa.array([1, 2], pa.duration("s")), "y": ["a", "b"]}), "column 't' holds"),
    "infinite": (
        parquet_bytes({"a": [1.0, 2.0, float("inf"), 3.0], "y": ["a", "b"] * 2}),
        "row 3: column 'a' holds an infinite",
    ),
    "a label missing": (
        parquet_bytes({"a": [1.0] * 4, "y": ["a", "b", None, "a"]}),
        "row 3: column 'y' lacks the label",
    ),
    "one class": (parquet_bytes({"a": [1.0] * 4, "y": ["a"] * 4}), "'y' has 1 different values"),
    "a label once": (
        parquet_bytes({"a": [1.0] * 5, "y": ["ab", "ab", "cd", "cd", "ac"]}),
        "row 5: column 'y' has the label 'ac', which occurs only",
    ),
    "many texts": (
        parquet_bytes({"a": [f"t{i // 2}" for i in range(300)], "y": ["a", "b"] * 150}),
        "column 'a' .*more than 100",
    ),
}


@pytest.mark.parametrize("name", PARQUET)
def test_parquet(tmp_path, name):
    content, match = PARQUET[name]
    (tmp_path / "bad.parquet").write_bytes(content)
    refuses(lambda: load_dataset(DataSettings(data=str(tmp_path / "bad.parquet"), label="y")), match, "bad.parquet")


def npy(array, **changes):
    """An array in numpy's format, its header changed."""
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=True)
    raw = out.getvalue()
    for old, new in changes.get("replace", {}).items():
        assert old in raw
        raw = raw.replace(old, new.ljust(len(old)), 1)
    return raw


def zipped(**members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in members.items():
            archive.writestr(f"{name}.npy", raw)
    return out.getvalue()


X, Y = np.random.default_rng(0).random((20, 1, 4, 4)), np.arange(20) % 2
SMALL = npy(np.zeros((20, 3)))
HUGE = {b"(20, 3)": b"(9**9,3)"}
NPZ = {
    "nothing": (b"", "as an .npz file of plain arrays"),
    "text": (b"hello", "as an .npz file"),
    "half a zip": (zipped(x=SMALL, y=npy(Y))[:-40], "as an .npz file"),
    "a zip of text": (zipped(x=b"hello", y=b"world"), "as an .npz file"),
    "an empty zip": (zipped(), "expected x and y .*got no array"),
    "only x": (zipped(x=npy(X)), "expected x and y"),
    "only y": (zipped(y=npy(Y)), "expected x and y"),
    "half a test part": (zipped(x=npy(X), y=npy(Y), y_test=npy(Y)), "one of x_test and y_test"),
    "objects": (zipped(x=npy(np.array([{}] * 20, object)), y=npy(Y)), "plain arrays"),
    "structures": (zipped(x=npy(np.zeros(20, [("p", "f4"), ("q", "i4")])), y=npy(Y)), "plain arrays"),
    "a header that claims the moon": (
        zipped(x=npy(np.zeros((20, 3)), replace={b"(20, 3), }": b"(99999999999999999, 3)}"[:9]}), y=npy(Y)),
        "as an .npz file|would take",
    ),
    "a header that claims a terabyte": (
        zipped(
            x=b"\x93NUMPY\x01\x00"
            + struct.pack("<H", 80)
            + b"{'descr': '<f8', 'fortran_order': False, 'shape': (500000000000, 3)}".ljust(79)
            + b"\n",
            y=npy(Y),
        ),
        "would take .* of memory",
    ),
    "a header with a negative size": (
        zipped(
            x=b"\x93NUMPY\x01\x00"
            + struct.pack("<H", 70)
            + b"{'descr': '<f8', 'fortran_order': False, 'shape': (-2, 3)}".ljust(69)
            + b"\n",
            y=npy(Y),
        ),
        "as an .npz file|header",
    ),
    "a header that is code": (
        zipped(
            x=b"\x93NUMPY\x01\x00"
            + struct.pack("<H", 60)
            + b"__import__('os').system('touch pwned')".ljust(59)
            + b"\n",
            y=npy(Y),
        ),
        "as an .npz file",
    ),
    "fewer numbers than the header says": (zipped(x=npy(X)[:-8], y=npy(Y)), "bytes where its header says"),
    "more numbers than the header says": (zipped(x=npy(X) + b"12345678", y=npy(Y)), "more bytes where its header says"),
    "texts": (zipped(x=npy(np.array(["a"] * 20)), y=npy(Y)), "expected numbers of shape"),
    "complex numbers": (zipped(x=npy(np.zeros((20, 3), complex)), y=npy(Y)), "expected numbers of shape"),
    "one dimension": (zipped(x=npy(np.zeros(20)), y=npy(Y)), "expected numbers of shape"),
    "five dimensions": (zipped(x=npy(np.zeros((20, 1, 2, 2, 2))), y=npy(Y)), "expected numbers of shape"),
    "no features": (zipped(x=npy(np.zeros((20, 0))), y=npy(Y)), r"expected numbers .*\(20, 0\)"),
    "no pixels": (zipped(x=npy(np.zeros((20, 3, 0, 5))), y=npy(Y)), r"expected numbers .*\(20, 3, 0, 5\)"),
    "channels last": (zipped(x=npy(np.zeros((20, 8, 8, 3))), y=npy(Y)), "channels come first"),
    "pixels up to 255": (zipped(x=npy(X * 255), y=npy(Y)), r"bytes or numbers in \[0, 1\]"),
    "pixels below zero": (zipped(x=npy(X - 1), y=npy(Y)), r"bytes or numbers in \[0, 1\]"),
    "NaN": (zipped(x=npy(np.where(X > 0.9, np.nan, X)), y=npy(Y)), "sample 0 holds NaN"),
    "infinite": (zipped(x=npy(np.where(X > 0.9, np.inf, X)), y=npy(Y)), "holds NaN or infinite"),
    "labels that are floats": (zipped(x=npy(X), y=npy(Y / 1.0)), "whole-number labels"),
    "labels that are texts": (zipped(x=npy(X), y=npy(Y.astype(str))), "whole-number labels"),
    "one-hot labels": (zipped(x=npy(X), y=npy(np.eye(2, dtype=int)[Y])), "whole-number labels"),
    "labels below zero": (zipped(x=npy(X), y=npy(Y - 1)), "label -1 of sample 0"),
    "labels with gaps": (zipped(x=npy(X), y=npy(Y * 5)), "without gaps; 1 does not occur"),
    "a label of nine billion": (zipped(x=npy(X), y=npy(Y * 9 * 10**9)), "without gaps"),
    "fewer labels": (zipped(x=npy(X), y=npy(Y[:-1])), "bad.npz has 20 inputs but 19 labels"),
    "no rows": (zipped(x=npy(X[:0]), y=npy(Y[:0])), "empty"),
    "one class": (zipped(x=npy(X), y=npy(Y * 0)), "1 class"),
    "fewer names than classes": (zipped(x=npy(X), y=npy(Y), classes=npy(np.array(["a"]))), "1 class"),
    "names in a square": (zipped(x=npy(X), y=npy(Y), classes=npy(np.array([["a", "b"]]))), "classes as a list"),
    "names that are floats": (zipped(x=npy(X), y=npy(Y), classes=npy(np.array([0.5, 1.5]))), "classes as a list"),
    "another test shape": (zipped(x=npy(X), y=npy(Y), x_test=npy(X[:, :, :2]), y_test=npy(Y)), "test inputs"),
    "an unknown test label": (zipped(x=npy(X), y=npy(Y), x_test=npy(X), y_test=npy(Y + 3)), "label 3 of sample 0"),
    "version 9": (zipped(x=b"\x93NUMPY\x09\x00" + bytes(100), y=npy(Y)), "as an .npz file"),
}


@pytest.mark.parametrize("name", NPZ)
def test_arrays(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    content, match = NPZ[name]
    (tmp_path / "bad.npz").write_bytes(content)
    refuses(lambda: load_dataset(str(tmp_path / "bad.npz")), match, "bad")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.npz"]


GREY = Preprocessing((1, 4, 4), (0.5,))
NUMBERS = Preprocessing((3,), (0.0,) * 3, "standard deviations", (0.0,) * 3, (1.0,) * 3)
NAMED = Preprocessing(
    (4,), (0.0,) * 4, "s", (0.0,) * 3, (1.0,) * 3, (Column("a"), Column("b"), Column("kind", ("k0", "k1")))
)
PREDICT = {
    "a missing picture": (GREY, "none.png", None, "does not exist"),
    "no picture": (GREY, "bad.png", b"hello", "as a picture"),
    "no suffix": (GREY, "bad", b"hello", "as a picture"),
    "an empty picture": (GREY, "bad.jpg", b"", "as a picture"),
    "a program": (GREY, "bad.png", b"\x7fELF" + bytes(100), "as a picture"),
    "a script for Ghostscript": (
        GREY,
        "bad.eps",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n(pwned) (w) file\n%%EOF\n",
        "as a picture",
    ),
    "a script called a picture": (
        GREY,
        "bad.png",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n",
        "as a picture",
    ),
    "a vector drawing": (GREY, "bad.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "as a picture"),
    "an array of another shape": (GREY, "bad.npy", npy(np.zeros((2, 5, 5))), "expected numbers for inputs of shape"),
    "an array with channels last": (GREY, "bad.npy", npy(np.zeros((2, 2, 8))), "for inputs of shape .*or rows of 16"),
    "an array of objects": (GREY, "bad.npy", npy(np.array([{}], object)), "plain arrays"),
    "an array cut off": (GREY, "bad.npy", npy(np.zeros((2, 4, 4)))[:-8], "bytes where its header says"),
    "a text called array": (GREY, "bad.npy", b"hello", "plain array"),
    "a pickle called array": (GREY, "bad.npy", pickle.dumps([1, 2]), "plain array"),
    "pixels out of range": (GREY, "bad.npy", npy(np.full((4, 4), 7.0)), r"numbers in \[0, 1\]"),
    "NaN pixels": (GREY, "bad.npy", npy(np.full((4, 4), np.nan)), "input 0 holds NaN"),
    "an empty array": (GREY, "bad.npy", npy(np.zeros((0, 4, 4))), "expected numbers"),
    "an archive without x": (GREY, "bad.npz", zipped(z=npy(np.zeros((4, 4)))), "bad.npz: expected an array x"),
    "an archive that is none": (GREY, "bad.npz", b"hello", "as an .npz file"),
    "a picture for a table": (NUMBERS, "bad.png", b"hello", "not pictures"),
    "too few numbers": (NUMBERS, "bad.csv", b"1,2\n", "expected numbers for inputs"),
    "a ragged row": (NUMBERS, "bad.csv", b"1,2,3\n1,2\n", "line 2: expected 3 cells .*got 2"),
    "a text among numbers": (NUMBERS, "bad.csv", b"1,2,3\n1,x,3\n", "line 2: column '2' holds numbers but here 'x'"),
    "a NaN among numbers": (NUMBERS, "bad.csv", b"1,nan,3\n", "input 0 holds NaN"),
    "no rows": (NUMBERS, "bad.csv", b"a,b,c\n", "no row below"),
    "no text": (NUMBERS, "bad.csv", b"\xff\xfe\x00", "cannot read"),
    "numbers beyond float32": (NUMBERS, "bad.npy", npy(np.full((2, 3), 1e300)), None),
    "columns that are not there": (NAMED, "bad.csv", b"a,kind\n1,k0\n", "no column 'b'"),
    "columns without names": (NAMED, "bad.csv", b"1,2,3\n4,5,6\n", "line 1: expected the names of the columns, got '"),
    "a text for a number": (NAMED, "bad.csv", b"a,b,kind\n1,x,k0\n", "line 2: column 'b' holds numbers but here 'x'"),
    "an infinite number": (NAMED, "bad.csv", b"a,b,kind\n1,inf,k0\n", "line 2: column 'b' holds an infinite"),
    "no rows below names": (NAMED, "bad.csv", b"a,b,kind\n", "no row below"),
    "an empty table": (NAMED, "bad.csv", b"", "expected the names"),
    "a ragged table": (NAMED, "bad.csv", b"a,b,kind\n1,2\n", "line 2: expected 3 cells"),
    "an array for categories": (NAMED, "bad.npy", npy(np.zeros((2, 4))), "the run's table has categories"),
    "no parquet": (NAMED, "bad.parquet", b"hello", "as a Parquet file"),
    "a parquet of text": (
        NAMED,
        "bad.parquet",
        parquet_bytes({"a": [1.0], "b": ["x"], "kind": ["k0"]}),
        "row 1: column 'b' holds numbers but here 'x'",
    ),
}


@pytest.mark.parametrize("name", PREDICT)
def test_files_to_predict(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    preprocessing, file, content, match = PREDICT[name]
    if content is not None:
        (tmp_path / file).write_bytes(content)
    names = [file] if match else []
    refuses(
        lambda: read_inputs([tmp_path / file], preprocessing), match or "row 0 is too far from the training", *names
    )
    assert {p.name for p in tmp_path.iterdir()} <= {file}


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


def idx(*sizes, kind=8, body=None, dimensions=None):
    head = bytes([0, 0, kind, len(sizes) if dimensions is None else dimensions])
    return head + struct.pack(f">{len(sizes)}I", *sizes) + (bytes(int(np.prod(sizes))) if body is None else body)


IDX = {
    "nothing": (b"", "no idx file"),
    "three bytes": (b"\0\0\x08", "no idx file"),
    "no sizes": (b"\0\0\x08\x03", "as an idx file .*requires a buffer of 12 bytes"),
    "half the sizes": (b"\0\0\x08\x03\0\0\0\1\0\0", "as an idx file .*requires a buffer of 12 bytes"),
    "floats": (idx(3, kind=0x0D), "no idx file of bytes"),
    "no magic": (b"\1\2" + idx(3)[2:], "no idx file"),
    "no dimensions": (idx(dimensions=0, body=b"x"), "no idx file"),
    "two hundred dimensions": (idx(3, dimensions=200), "no idx file"),
    "nothing of something vast": (idx(0, 0x7FFFFFFF, 0x7FFFFFFF, body=b""), "is empty"),
    "too short": (idx(3, 4, body=bytes(11)), "truncated or too long: 11 bytes, by its header"),
    "too long": (idx(3, 4, body=bytes(13)), "more bytes, by its header"),
    "a header of sixteen exabytes": (idx(2**32 - 1, 2**32 - 1, body=b"x"), "would take more than 10,000 GB"),
    "a header of a terabyte": (idx(10**6, 10**6, body=b"x"), "would take 1e.03 GB"),
    "a picture": (encoded(), "no idx file"),
}


@pytest.mark.parametrize("name", IDX)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx(tmp_path, name, suffix):
    content, match = IDX[name]
    (tmp_path / f"bad{suffix}").write_bytes(gzip.compress(content) if suffix else content)
    refuses(lambda: read_idx(tmp_path / f"bad{suffix}"), match, f"bad{suffix}")


@pytest.mark.parametrize(
    "content",
    [gzip.compress(idx(3, 4))[:-9], b"no gzip", b"", b"\x1f\x8b\x08" + bytes(20), gzip.compress(idx(3, 4)) + b"junk"],
    ids=["cut off", "text", "nothing", "a header only", "junk behind"],  # the bytes hold the time of day
)
def test_gzip(tmp_path, content):
    (tmp_path / "bad.gz").write_bytes(content)
    refuses(lambda: read_idx(tmp_path / "bad.gz"), "cannot read|no idx|truncated", "bad.gz")


def test_a_gzip_bomb_stays_shut(tmp_path):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(idx(3, 4) + bytes(50_000_000)))
    refuses(lambda: read_idx(tmp_path / "bomb.gz"), "more bytes, by its header")


CIFAR = {
    "data_batch_2.bin": [(b"", "truncated"), (bytes(3072), "truncated: 3072 bytes are not a multiple of 3073")],
    "test_batch.bin": [(b"\xff" + bytes(3072), "label 255 of sample 0 is not in 0..9")],
    "batches.meta.txt": [
        (b"\xff\xfe\xfa", "cannot read .*batches.meta.txt as class names"),
        (b"only one", "label 9|label 2|not in 0..1"),
    ],
}


@pytest.mark.parametrize(("file", "content", "match"), [(f, c, m) for f, cases in CIFAR.items() for c, m in cases])
def test_cifar_binary(tmp_path, file, content, match):
    from test_data import write_cifar10

    write_cifar10(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / file).write_bytes(content)
    with pytest.raises(UserError, match=match):
        load_dataset("cifar10", tmp_path)


PIXELS = np.zeros((4, 3072), np.uint8)
BATCH = python2_pickle({"labels": [0, 1, 2, 3], "data": PIXELS})
PICKLES = {
    "nothing": (b"", "as a pickle of plain data"),
    "text": (b"hello", "pickle|plain data"),
    "cut off": (BATCH[:-100], "as a pickle of plain data"),
    "cut off early": (BATCH[:30], "as a pickle of plain data"),
    "a list": (pickle.dumps([1, 2], 2), "no dictionary"),
    "a number": (pickle.dumps(1, 2), "no dictionary"),
    "no data": (python2_pickle({"labels": [0, 1]}), "expected 'data'"),
    "no labels": (python2_pickle({"data": PIXELS}), "expected 'labels'"),
    "labels that are texts": (python2_pickle({"labels": ["a"] * 4, "data": PIXELS}), "whole numbers"),
    "labels that are booleans": (pickle.dumps({"labels": [True] * 4, "data": "x"}, 2), "expected 'data'"),
    "too few labels": (python2_pickle({"labels": [0, 1], "data": PIXELS}), "expected 'labels' as 4 whole numbers"),
    "labels out of range": (python2_pickle({"labels": [0, 1, 2, 250], "data": PIXELS}), "whole numbers in 0..99"),
    "rows of another length": (python2_pickle({"labels": [0] * 4, "data": PIXELS[:, :100]}), "rows of 3072 bytes"),
    "an array that claims more than it has": (
        BATCH.replace(struct.pack("<i", 4) + b"J", struct.pack("<i", 2**31 - 1) + b"J", 1),
        "as a pickle",
    ),
    "an array with a negative size": (
        BATCH.replace(struct.pack("<i", 4) + b"J", struct.pack("<i", -4) + b"J", 1),
        "odd shape",
    ),
    "objects": (BATCH.replace(b"U\x02u1", b"U\x02O8"), "a call of dtype"),
    "numbers": (BATCH.replace(b"U\x02u1", b"U\x02i8"), "a call of dtype"),
    "os.system": (b"\x80\x02}(U\x04datacos\nsystem\nU\x02id\x85Ru.", "a call of os system"),
    "eval": (b"\x80\x02}(U\x04datac__builtin__\neval\nU\x02id\x85Ru.", "a call of __builtin__ eval"),
    "a persistent object": (b"\x80\x02U\x01xQ.", "plain data .*an instruction that"),
    "an extension": (b"\x80\x02\x82\x01.", "plain data .*an instruction that"),
    "a new object": (b"\x80\x02cos\nPopen\n)\x81.", "a call of os Popen"),
    "a memo that is not there": (b"\x80\x02h\x07.", "plain data .*Memo value not found"),
    "a memo of gigabytes": (b"\x80\x02}r\xff\xff\xff\x7f.", "expected 'data'"),
    "too many instructions": (b"\x80\x02}(" + b"]" * 2_100_000 + b"u.", "more than 2000000 steps"),
    "an empty stack": (b"\x80\x02e.", "as a pickle"),
    "floats": (pickle.dumps({"data": 0.5}, 2), "plain data .*an instruction that"),
    "a set": (pickle.dumps({"data": {1}}, 2), "a call of __builtin__ set"),
    "protocol 5": (pickle.dumps({"data": [1]}, 5), "plain data .*an instruction that"),
    "a billion digits": (b"\x80\x02}U\x01aI" + b"9" * 5000 + b"\ns.", "as a pickle"),
}


@pytest.mark.parametrize("name", PICKLES)
def test_cifar_python(tmp_path, name):
    content, match = PICKLES[name]
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10_python(folder)
    (folder / "data_batch_3").write_bytes(content)
    refuses(lambda: load_dataset("cifar10", tmp_path), match, "data_batch_3")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (python2_pickle({"names": ["a"]}), "expected 'label_names'"),
        (python2_pickle({"label_names": [1, 2]}), "expected 'label_names' as a list of names"),
        (python2_pickle({"label_names": []}), "expected 'label_names'"),
        (b"junk", "batches.meta"),
    ],
)
def test_cifar_python_names(tmp_path, content, match):
    write_cifar10_python(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "batches.meta").write_bytes(content)
    refuses(lambda: load_dataset("cifar10", tmp_path), match, "batches.meta")


def test_a_pickle_that_is_too_large(tmp_path):
    with (tmp_path / "big").open("wb") as file:
        file.truncate(200_000_001)
    refuses(lambda: read_plain_pickle(tmp_path / "big"), "larger than the 200 MB", "big")


TINY = {
    "no classes": ("wnids.txt", "", "wnids.txt is empty"),
    "a class twice": ("wnids.txt", "n01\nn01\n", "names a class twice"),
    "a class without pictures": ("wnids.txt", "n01\nn02\nn03\n", "n03.*holds no .JPEG"),
    "no UTF-8": ("wnids.txt", b"\xff\xff", "cannot read"),
    "a class misspelt": (
        "val/val_annotations.txt",
        "val_0.JPEG\tn0l\t0\n",
        "line 1: unknown class 'n0l'; did you mean 'n0",
    ),
    "another class": (
        "val/val_annotations.txt",
        "val_0.JPEG\tn01\nval_1.JPEG\tzebra\n",
        "line 2: unknown class 'zebra'",
    ),
    "no class": ("val/val_annotations.txt", "val_0.JPEG\n", "line 1: unknown class ''"),
    "no lines": ("val/val_annotations.txt", "\n\n", "val_annotations.txt is empty"),
    "a path": ("val/val_annotations.txt", "../../secret.JPEG\tn01\n", "line 1: '../../secret.JPEG' is no plain file"),
    "a parent": ("val/val_annotations.txt", "..\tn01\n", "is no plain file name"),
    "a picture that is not there": ("val/val_annotations.txt", "val_9.JPEG\tn01\n", "val_9.JPEG"),
    "a picture that is none": ("val/images/val_0.JPEG", "hello", "val_0.JPEG as a picture"),
    "no words": ("words.txt", "", "words.txt is empty"),
}


@pytest.mark.parametrize("name", TINY)
def test_tiny_imagenet(tmp_path, name):
    folder = write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    file, content, match = TINY[name]
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    refuses(lambda: load_dataset("tiny-imagenet", tmp_path), match)


SETTINGS = {
    "seed: true\n": "line 1: seed: yes and no",
    "seed: yes\n": "line 1: seed: yes and no",
    "epochs: off\n": "line 1: epochs: yes and no",
    "epsilons: [true]\n": "line 1: epsilons",
    "seed: 1\nseed: 2\n": "line 2: 'seed' is given twice",
    "seed: 1\n'seed': 2\n": "line 2: 'seed' is given twice",
    "seed: 1.5\n": "line 1: seed: .*got 1.5",
    "seed: -1\n": "line 1: seed: .*got -1",
    "seed: [1]\n": "line 1: seed",
    "seed: {a: 1}\n": "line 1: seed: expected a value or a list",
    "seed:\n  - - 1\n": "line 1: seed: expected a value or a list",
    "seed: 2023-99-99\n": "s.yaml",
    "? [a]\n: 1\n": "line 1: expected a name",
    "a: &x [1, 2]\nb: *x\n": "line 1: unknown setting 'a'",
    "a: &a [x]\nb: &b [*a, *a]\n": "line 2: b: expected a value or a list",
    "seed: 1\nseed 2\n": "as settings in YAML",
    "seed: !!python/object/apply:os.system [id]\n": "as settings in YAML",
    "!!python/name:os.system\n": "as settings in YAML",
    "seed: !foo 1\n": "as settings in YAML",
    "seed: 'x\n": "as settings in YAML",
    "\tseed: 1\n": "as settings in YAML",
    "just a text\n": "expected lines like",
    "42\n": "expected lines like",
    "--- \nseed: 1\n---\nseed: 2\n": "as settings in YAML",
    "epoch: 3\n": "did you mean 'epochs'",
    "learning-rate: 3\n": "did you mean 'learning_rate'",
    "zzz: 3\n": "unknown setting 'zzz'; lipscale.Settings lists them",
    "lipschitz: 0\n": "line 1: lipschitz",
    "lipschitz: .nan\n": "line 1: lipschitz",
    "lipschitz: 1e999\n": "line 1: lipschitz",
    "learning_rate: fast\n": "line 1: learning_rate",
    "learning_rate: 1000\n": "line 1: learning_rate",
    "calibration_fraction: 1\n": "line 1: calibration_fraction",
    "test_fraction: 0\n": "line 1: test_fraction",
    "width: 1000000000\n": "line 1: width",
    "depth: 100000\n": "line 1: depth",
    "window: 1\n": "line 1: window",
    "batch_size: 0\n": "line 1: batch_size",
    "image_size: 2\n": "line 1: image_size",
    "image_size: 1000000\n": "line 1: image_size",
    "image_fit: squash\n": "line 1: image_fit",
    "image_color: gray\n": "line 1: image_color.*did you mean 'grey'",
    "class_weights: fair\n": "line 1: class_weights: expected none, balanced",
    "class_weights: [1, -1]\n": "line 1: class_weights",
    "class_weights: [1, .inf]\n": "line 1: class_weights",
    "class_weights: []\n": "line 1: class_weights",
    "method: lst\n": "did you mean 'list'",
    "data: 5\n": "line 1: data",
    "label: [a]\n": "line 1: label",
    "drop: 5\n": "line 1: drop",
    "epsilons: 1/0\n": "line 1: epsilons",
    "epsilons: -1\n": "line 1: epsilons",
    "epsilons: ''\n": "line 1: epsilons",
    "\0": "as settings in YAML",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"): "s.yaml",
}


@pytest.mark.parametrize("text", SETTINGS, ids=lambda t: t[:25].replace("\n", " ").replace("\0", "NUL"))
def test_settings(tmp_path, text):
    path = tmp_path / "s.yaml"
    path.write_text(text)

    def read():
        values, place = read_settings(path)
        Settings.checked(values, place=place)

    refuses(read, SETTINGS[text], "s.yaml")


def test_settings_that_are_no_text_or_too_long(tmp_path):
    (tmp_path / "s.yaml").write_bytes(b"\xff\xfe\0\0")
    refuses(lambda: read_settings(tmp_path / "s.yaml"), "cannot read", "s.yaml")
    (tmp_path / "s.yaml").write_bytes(b"a: 1\n" * 300_000)
    refuses(lambda: read_settings(tmp_path / "s.yaml"), "larger than the 1 MB", "s.yaml")
    (tmp_path / "s.yaml").write_text("a: " + "[" * 3000)
    refuses(lambda: read_settings(tmp_path / "s.yaml"), "as settings in YAML", "s.yaml")
    refuses(lambda: read_settings(tmp_path), "is a folder", tmp_path.name)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    rows = write_csv(tmp_path_factory.mktemp("data") / "t.csv", table_rows(100))
    quick = {"label": "y", "epochs": 1, "phase2_epochs": 1, "width": 8, "device": "cpu"}
    return lipscale.train(Settings(data=str(rows), out=tmp_path_factory.mktemp("runs") / "run", **quick))


def preprocessing(**changes):
    """The stored description of the data with something changed."""

    def change(about, run):
        return {**about, "preprocessing": {**asdict(run.preprocessing), **changes}}

    return change


ABOUT = {
    "no dictionary": lambda about, run: [1],
    "no classes": lambda about, run: {k: v for k, v in about.items() if k != "classes"},
    "an empty list of classes": lambda about, run: {**about, "classes": []},
    "one class": lambda about, run: {**about, "classes": ["only"]},
    "classes that are numbers": lambda about, run: {**about, "classes": [1, 2, 3]},
    "classes that are a text": lambda about, run: {**about, "classes": "abc"},
    "no preprocessing": lambda about, run: {**about, "preprocessing": None},
    "no shape": preprocessing(input_shape=[]),
    "a shape of a terabyte": preprocessing(input_shape=[10**12]),
    "a negative shape": preprocessing(input_shape=[-5]),
    "means that are texts": preprocessing(mean=["a"] * 5),
    "too few means": preprocessing(mean=[0.0]),
    "too few columns": preprocessing(columns=[{"name": "a"}]),
    "columns that are texts": preprocessing(columns=["a", "b", "c"]),
    "a std of zero": preprocessing(column_std=[0.0, 1.0, 1.0]),
    "a digest that is a list": lambda about, run: {**about, "digest": [1]},
}


@pytest.mark.parametrize("name", ABOUT)
def test_data_descriptions_of_runs(finished, tmp_path, name):
    folder = shutil.copytree(finished.folder, tmp_path / "run")
    about = json.loads((folder / "data.json").read_text())
    (folder / "data.json").write_text(json.dumps(ABOUT[name](about, finished)))
    refuses(lambda: load(folder), "damaged", "data.json")


RUN_FILES = {
    "settings gone": ("settings.yaml", None, "no run folder"),
    "settings that are none": ("settings.yaml", b"[1]", "settings.yaml"),
    "settings of another width": (
        "settings.yaml",
        b"width: 16\nmodel: mlp\nbatch_size: 9\n",
        "settings.yaml .*is not what the network",
    ),
    "data gone": ("data.json", None, "data.json"),
    "data no JSON": ("data.json", b"{", "cannot read"),
    "data nested to death": ("data.json", b"[" * 100000, "cannot read|damaged"),
    "metrics no JSON": ("metrics.json", b"nope", "cannot read"),
    "metrics a list": ("metrics.json", b"[]", "metrics.json is damaged"),
    "metrics no text": ("metrics.json", b"\xff\xff", "cannot read"),
    "model gone": ("model.safetensors", None, "not finished"),
    "model empty": ("model.safetensors", b"", "truncated or no lipscale file"),
    "model a pickle": ("model.safetensors", pickle.dumps({"a": 1}), "truncated or no lipscale file"),
    "model with a header of a terabyte": ("model.safetensors", struct.pack("<Q", 10**12) + b"{}", "truncated or no"),
    "model of somebody else": ("model.safetensors", struct.pack("<Q", 8) + b"{}      ", "not written by this version"),
}


@pytest.mark.parametrize("name", RUN_FILES)
def test_files_of_runs(finished, tmp_path, name):
    folder = shutil.copytree(finished.folder, tmp_path / "run")
    file, content, match = RUN_FILES[name]
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    refuses(lambda: load(folder), match, "run")


@pytest.mark.parametrize("file", ["model.safetensors", "checkpoint.safetensors"])
@pytest.mark.parametrize("where", [9, 300, 0.5, -1])
def test_a_single_changed_bit_is_noticed(finished, tmp_path, file, where):
    folder = shutil.copytree(finished.folder, tmp_path / "run")
    raw = bytearray((folder / file).read_bytes())
    raw[int(where * len(raw)) if isinstance(where, float) else where] ^= 1
    (folder / file).write_bytes(raw)
    if file.startswith("checkpoint"):
        (folder / "metrics.json").unlink()
    refuses(lambda: resume(folder) if file.startswith("checkpoint") else load(folder), file)


def test_the_table_is_long_enough():
    single = [CSV, PARQUET, NPZ, PREDICT, PICTURES, FOLDERS, NAMES, PICKLES, TINY, SETTINGS, ABOUT, RUN_FILES]
    assert sum(map(len, single)) + 2 * len(IDX) >= 200
