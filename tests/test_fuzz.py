"""Every reader against damaged and invented files: it answers or raises UserError, and nothing else ever.

Short in CI. For longer: `LIPSCALE_FUZZ_SECONDS=600 pytest tests/test_fuzz.py -k parquet`.
"""

import csv
import gzip
import io
import json
import os
import shutil
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import lipscale
from lipscale.certificates.robustness import Attack
from lipscale.data import Column, DataSettings, Preprocessing, load_dataset, prepare
from lipscale.data.cifar import read_cifar10
from lipscale.data.download import unpack
from lipscale.data.idx import read_idx
from lipscale.data.pictures import look, quiet_pillow, read_picture
from lipscale.data.plain_pickle import read_plain_pickle
from lipscale.errors import UserError
from lipscale.experiments.sweep import read_grid, rows_of
from lipscale.report.figures import draw_all
from lipscale.report.record import read_record
from lipscale.runs import attack_run, load, resume
from lipscale.runs.predict import read_inputs
from lipscale.runs.settings import Settings, make_settings, read_settings
from makers import python2_pickle, python3_pickle, table_rows, write_csv, write_tiny_imagenet
from test_download import GOOD, tar, zipped

SECONDS = float(os.environ.get("LIPSCALE_FUZZ_SECONDS", "0"))
EXAMPLES = 40
ODD = (b"\0", b"\xff", b"\xff" * 4, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\0\0\0\x80", b"-1", b"1e999", b"../", b"\n")
NAMED = Preprocessing(
    (4,), (0.0,) * 4, "s", (0.0,) * 3, (1.0,) * 3, (Column("a"), Column("b"), Column("kind", ("blue", "red")))
)
GREY = Preprocessing((1, 4, 4), (0.5,))


@st.composite
def damaged(draw, good: bytes) -> bytes:
    """Good bytes with a few changes: overwritten, inserted, removed, repeated, cut off."""
    raw = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        kind = draw(st.sampled_from(["flip", "write", "odd", "insert", "remove", "repeat", "cut"]))
        if kind == "flip" and raw:
            raw[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "write":
            new = draw(st.binary(min_size=1, max_size=8))
            raw[at : at + len(new)] = new
        elif kind == "odd":
            new = draw(st.sampled_from(ODD))
            raw[at : at + len(new)] = new
        elif kind == "insert":
            raw[at:at] = draw(st.one_of(st.binary(min_size=1, max_size=16), st.sampled_from(ODD)))
        elif kind == "remove":
            del raw[at : at + draw(st.integers(1, 32))]
        elif kind == "repeat":
            raw[at:at] = raw[at : at + draw(st.integers(1, 64))] * draw(st.integers(1, 4))
        else:
            del raw[at:]
    return bytes(raw)


def fuzz(strategy, action):
    """Only UserError may come out, one line of it, within seconds; for as long as we are asked to."""
    until = time.monotonic() + SECONDS
    count = 0

    @settings(
        max_examples=100 if SECONDS else EXAMPLES,
        deadline=None,
        database=None,
        derandomize=not SECONDS,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def attack(content):
        nonlocal count
        if SECONDS and time.monotonic() > until:
            return
        count += 1
        start, message = time.monotonic(), ""
        try:
            action(content)
        except UserError as error:
            message = str(error)
        assert len(message.splitlines()) <= 1
        assert time.monotonic() - start < 20

    attack()
    while time.monotonic() < until:
        attack()
    print(f"{count} examples")


def png(mode="RGB", kind="PNG", **options):
    out = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 11, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(out, kind, **options)
    return out.getvalue()


def csv_bytes():
    out = io.StringIO()
    csv.writer(out).writerows([["a", "b", "kind", "y"], *table_rows(24)])
    return out.getvalue().encode()


def parquet(**options):
    out = io.BytesIO()
    columns = {"a": list(np.arange(30) / 7), "b": [None, *range(29)], "kind": ["red", "blue", None] * 10}
    pq.write_table(pa.table({**columns, "y": ["p", "q"] * 15}), out, **options)
    return out.getvalue()


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(x, y=None):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", npy(np.arange(20) % 2) if y is None else y)
    return out.getvalue()


def table(path):
    prepare(load_dataset(DataSettings(data=str(path), label="y")))


def picture(path):
    with quiet_pillow():
        look(path)
        read_picture(path, (3, 8, 8), fit="crop")


def settings_of(path):
    values, place = read_settings(path)
    make_settings(values, place=place)


def archive(path):
    target = path.with_name("target")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    try:
        unpack(path, target)
    finally:
        assert {p.name for p in path.parent.iterdir()} == {path.name, "target"}


def cifar(path):
    """Read the damaged file as the first of CIFAR-10's batches; the others, and the names, are good."""
    binary = path.suffix == ".bin"
    for name in (*(f"data_batch_{i}" for i in range(2, 6)), "test_batch"):
        good = RECORDS if binary else python2_pickle(BATCH)
        path.with_name(f"{name}{path.suffix}").write_bytes(good)
    names = [f"class{i}" for i in range(10)]
    path.with_name("batches.meta.txt").write_text("\n".join(names))
    path.with_name("batches.meta").write_bytes(python2_pickle({"label_names": names}))
    prepare(read_cifar10(path.parent))


def grid(path):
    rows_of(read_grid(path))


GRID = (
    b"settings: {data: digits, epochs: 3}\nmethods: [list, fixed]\noffsets: [0, 3]\nconstants: [1, 4.5]\nseeds: [0]\n"
)
GRID += b"attack: {name: pgd, epsilon: 0.5, samples: 20}\n"
RECORDS = b"".join(bytes([label]) + bytes(3072) for label in range(3))
BATCH = {"labels": [0, 1, 2], "data": np.zeros((3, 3072), np.uint8), "filenames": ["a.png", "b.png", "c.png"]}
IDX = b"\0\0\x08\x03" + b"\0\0\0\x02\0\0\0\x03\0\0\0\x04" + bytes(24)
X = npy(np.random.default_rng(0).random((20, 1, 4, 4)))

# name: file, good content, what reads it
FILES = {
    "idx": ("x-idx3-ubyte", IDX, read_idx),
    "idx.gz": ("x-idx3-ubyte.gz", gzip.compress(IDX), read_idx),
    "pickle of Python 2": ("data_batch_1", python2_pickle(BATCH), read_plain_pickle),
    "pickle of Python 3": ("data_batch_1", python3_pickle(BATCH), read_plain_pickle),
    "cifar": ("data_batch_1.bin", RECORDS, cifar),
    "cifar of Python": ("data_batch_1", python2_pickle(BATCH), cifar),
    "grid": ("g.yaml", GRID, grid),
    "csv": ("t.csv", csv_bytes(), table),
    "csv to predict": ("t.csv", csv_bytes(), lambda path: read_inputs([path], NAMED)),
    "rows to predict": ("t.csv", b"0.1,0.2,0.3,0.4\n" * 4, lambda path: read_inputs([path], GREY)),
    "parquet": ("t.parquet", parquet(), table),
    "parquet plain": ("t.parquet", parquet(compression="none", use_dictionary=False), table),
    "parquet to predict": ("t.parquet", parquet(), lambda path: read_inputs([path], NAMED)),
    "npz": ("x.npz", npz(X), lambda path: prepare(load_dataset(str(path)))),
    "npy": ("x.npy", npy(np.zeros((2, 4, 4))), lambda path: read_inputs([path], GREY)),
    "png": ("x.png", png(), picture),
    "png with a palette": ("x.png", png("P"), picture),
    "jpeg": (
        "x.jpg",
        png(kind="JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"),
        picture,
    ),
    "gif": ("x.gif", png("P", "GIF"), picture),
    "tiff": ("x.tif", png(kind="TIFF"), picture),
    "webp": ("x.webp", png(kind="WEBP"), picture),
    "bmp": ("x.bmp", png(kind="BMP"), picture),
    "ppm": ("x.ppm", png(kind="PPM"), picture),
    "settings": ("s.yaml", b"data: digits\nepsilons: [0.1, 1/4]\nseed: 3\nlipschitz: 2.5\nout: null\n", settings_of),
    "tar.gz": ("set.tar.gz", tar(*GOOD), archive),
    "zip": ("set.zip", zipped(*GOOD), archive),
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_files(tmp_path, name):
    file, good, read = FILES[name]
    path = tmp_path / file

    def action(content):
        path.write_bytes(content)
        read(path)

    action(good)
    fuzz(damaged(good), action)


# what lies inside a compressed file, damaged before it is compressed: its checksum would else stop everything
INSIDE = {
    "idx in gzip": ("x.gz", IDX, gzip.compress, read_idx),
    "arrays in npz": ("x.npz", X, npz, lambda path: prepare(load_dataset(str(path)))),
    "labels in npz": (
        "x.npz",
        npy(np.arange(20) % 2),
        lambda raw: npz(X, raw),
        lambda path: prepare(load_dataset(str(path))),
    ),
    "tar in gzip": ("set.tar.gz", gzip.decompress(tar(*GOOD)), gzip.compress, archive),
}


@pytest.mark.parametrize("name", INSIDE)
def test_damaged_content(tmp_path, name):
    file, good, pack, read = INSIDE[name]
    path = tmp_path / file

    def action(content):
        path.write_bytes(pack(content))
        read(path)

    action(good)
    fuzz(damaged(good), action)


def test_damaged_png_with_good_checksums(tmp_path):
    """Decoders see damage only behind a chunk's checksum."""

    def mend(raw):
        out, at = bytearray(raw[:8]), 8
        while at + 8 <= len(raw):
            length = min(int.from_bytes(raw[at : at + 4], "big"), len(raw))
            kind, body = raw[at + 4 : at + 8], raw[at + 8 : at + 8 + length]
            out += len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")
            at += 12 + length
        return bytes(out)

    def action(content):
        (tmp_path / "x.png").write_bytes(mend(content))
        picture(tmp_path / "x.png")

    fuzz(damaged(png("P")), action)


cells = st.one_of(
    st.text(max_size=6),
    st.floats().map(str),
    st.integers().map(str),
    st.sampled_from(["", "NA", "nan", "inf", "-", '"', "a\nb", "1,5", "1e400", "１２", "0x10", "1_0", "true"]),
)


def test_invented_tables(tmp_path):
    def action(rows):
        write_csv(tmp_path / "t.csv", rows[1:], header=[*rows[0], "y"])
        table(tmp_path / "t.csv")

    width = st.integers(1, 4)
    rows = width.flatmap(
        lambda n: st.tuples(
            st.lists(st.text(min_size=1, max_size=4), min_size=n, max_size=n, unique=True),
            st.lists(st.tuples(*[cells] * n, st.sampled_from(["p", "q", "r", ""])).map(list), min_size=1, max_size=30),
        ).map(lambda t: [t[0], *t[1]])
    )
    fuzz(rows, action)


def test_invented_text_as_a_table(tmp_path):
    def action(content):
        (tmp_path / "t.csv").write_bytes(content)
        table(tmp_path / "t.csv")

    fuzz(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda t: t.encode("utf-8", "replace"))), action)


def test_invented_settings(tmp_path):
    def action(content):
        (tmp_path / "s.yaml").write_text(content, encoding="utf-8", errors="replace")
        settings_of(tmp_path / "s.yaml")

    scalar = st.one_of(st.text(max_size=8), st.integers().map(str), st.floats().map(str), st.booleans().map(str))
    line = st.tuples(st.sampled_from([*Settings.model_fields]), scalar).map(lambda pair: f"{pair[0]}: {pair[1]}")
    fuzz(st.one_of(st.text(max_size=100), st.lists(line, max_size=5).map("\n".join)), action)


def test_damaged_tiny_imagenet(tmp_path):
    folder = write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    for file in ("wnids.txt", "words.txt", "val/val_annotations.txt"):
        good = (folder / file).read_bytes()

        def action(content, file=file):
            (folder / file).write_bytes(content)
            load_dataset("tiny-imagenet", tmp_path)

        fuzz(damaged(good), action)
        (folder / file).write_bytes(good)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    rows = write_csv(tmp_path_factory.mktemp("data") / "t.csv", table_rows(60))
    quick = {"label": "y", "epochs": 1, "phase2_epochs": 0, "width": 4, "depth": 1, "device": "cpu"}
    return lipscale.train(Settings(data=str(rows), out=tmp_path_factory.mktemp("runs") / "run", **quick)).folder


@pytest.mark.parametrize("file", ["model.safetensors", "data.json", "settings.yaml", "metrics.json"])
def test_damaged_run_folders(tmp_path, run_folder, file):
    folder = shutil.copytree(run_folder, tmp_path / "run")
    good = (folder / file).read_bytes()

    def action(content):
        (folder / file).write_bytes(content)
        load(folder)

    fuzz(damaged(good), action)


@pytest.mark.parametrize("file", ["checkpoint.safetensors", "history.jsonl", "versions.json"])
def test_damaged_folders_of_stopped_runs(tmp_path, run_folder, file):
    folder = shutil.copytree(run_folder, tmp_path / "run")
    good = (folder / file).read_bytes()

    def action(content):
        (folder / file).write_bytes(content)
        (folder / "metrics.json").unlink(missing_ok=True)
        resume(folder)

    fuzz(damaged(good), action)


@pytest.mark.parametrize("file", ["predictions.safetensors", "history.jsonl", "robustness.json"])
def test_damaged_folders_in_a_report(tmp_path, run_folder, file):
    folder = shutil.copytree(run_folder, tmp_path / "run")
    attack_run(load(folder), Attack(steps=1, restarts=1), samples=5, epsilons=(0.1,))
    good = (folder / file).read_bytes()

    def action(content):
        (folder / file).write_bytes(content)
        draw_all([read_record(folder, "run", with_samples=False)])

    fuzz(damaged(good), action)


def test_invented_data_descriptions(tmp_path, run_folder):
    """Sound JSON with other values in it."""
    folder = shutil.copytree(run_folder, tmp_path / "run")
    good = json.loads((folder / "data.json").read_text())
    value = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
        max_leaves=6,
    )

    def action(change):
        key, new = change
        about = {**good, "preprocessing": {**good["preprocessing"]}}
        (about if key in about else about["preprocessing"])[key] = new
        (folder / "data.json").write_text(json.dumps(about))
        load(folder)

    fuzz(st.tuples(st.sampled_from([*good, *good["preprocessing"]]), value), action)


def test_the_fuzzer_finds_what_is_there(tmp_path):
    """A reader with a hole is caught: the harness itself works."""

    def reader(path: Path) -> None:
        if b"\xff" in path.read_bytes():
            raise KeyError("hole")

    def action(content):
        (tmp_path / "x").write_bytes(content)
        reader(tmp_path / "x")

    with pytest.raises(KeyError):
        fuzz(damaged(bytes(50)), action)
