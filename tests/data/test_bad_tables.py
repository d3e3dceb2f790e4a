"""Tables that are no tables: each ends in one line that names the file, row, column or key."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lipscale.data import DataSettings, load_dataset
from makers import (
    refuses,
)


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
        "column 'name' has 150 different texts, none of which occurs 5 times; .*`drop`",
    ),
    "many zip codes": (
        lines("zip,y", *(f"0{1000 + i // 2},{i % 2}" for i in range(300))),
        "column 'zip' has 150 different codes with leading zeros, none of which occurs 5 times; .*`drop`",
    ),
    "several bad columns": (
        lines("a,b,c,name,y", *(f"{i}.5,,x{'' if i else 'x' * 2000},n{i // 2},{i % 2}" for i in range(300))),
        "3 columns cannot be read: 'b' is empty; 'c' holds a text of 2001 .*line 2.; 'name' has 150.*`drop` b,c,name",
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
        "column 'a' has 150 different texts",
    ),
}


@pytest.mark.parametrize("name", PARQUET)
def test_parquet(tmp_path, name):
    content, match = PARQUET[name]
    (tmp_path / "bad.parquet").write_bytes(content)
    refuses(lambda: load_dataset(DataSettings(data=str(tmp_path / "bad.parquet"), label="y")), match, "bad.parquet")
