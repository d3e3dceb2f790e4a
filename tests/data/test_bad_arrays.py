"""Arrays that are none, and files to predict that a run cannot take."""

import io
import pickle
import struct
import zipfile

import numpy as np
import pytest
from test_bad_tables import parquet_bytes

from lipscale.data import Column, Preprocessing, load_dataset
from lipscale.runs.predict import read_inputs
from makers import (
    refuses,
)


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
