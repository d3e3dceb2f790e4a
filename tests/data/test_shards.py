"""Data in several files: the same samples as in one, in little memory; real files, damaged for real."""

import io
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import date, timedelta
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from conftest import lipscale
from lipscale import Settings, load, resume, train
from lipscale.data import prepare, read_dataset
from lipscale.data.stored import Place, Rows, Stored
from lipscale.errors import StoppedError, UserError
from lipscale.runs.run import evaluate_run
from lipscale.settings import DataSettings

RNG = np.random.default_rng(0)
N = 90
Y = np.arange(N) % 3
KINDS = {
    "bytes": RNG.integers(0, 256, (N, 3, 8, 8), np.uint8),
    "grey": RNG.integers(0, 256, (N, 8, 8), np.uint8),
    "numbers": RNG.random((N, 3, 8, 8), np.float32),
    "doubles": RNG.random((N, 1, 8, 8)),
    "table": 1e6 + RNG.normal(size=(N, 5)) * [1, 10, 100, 1e-3, 0],
}
CUTS = (0, 40, 41, N)  # files of 40, 1 and 49 samples


def write_npz(folder, x, y=Y, save=np.savez, **more):
    folder.mkdir()
    for i, (start, end) in enumerate(pairwise(CUTS)):
        save(folder / f"part-{i}.npz", x=x[start:end], y=y[start:end], **more)
    return folder


def same(one, other):
    """Whether two sets hold the same samples, ready for a network."""
    (one, done), (other, also) = prepare(one), prepare(other)
    assert asdict(done) == asdict(also)
    assert one.classes == other.classes
    assert [one.train.digest(), one.test.digest()] == [other.train.digest(), other.test.digest()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_files_are_the_set_that_one_file_is(tmp_path, kind, save):
    folder = write_npz(tmp_path / "shards", KINDS[kind], save=save, classes=["a", "b", "c"])
    np.savez(tmp_path / "one.npz", x=KINDS[kind], y=Y, classes=["a", "b", "c"])
    one = read_dataset(str(tmp_path / "one.npz"))
    for data in (folder, folder / "part-?.npz"):
        found = read_dataset(str(data))
        assert isinstance(found.train.inputs, Stored)
        same(found, one)


def test_files_called_test_are_the_test_part(tmp_path):
    folder = write_npz(tmp_path / "shards", KINDS["bytes"])
    for i, name in enumerate(("train-0", "train-1", "test-0")):
        (folder / f"part-{i}.npz").rename(folder / f"{name}.npz")
    found = read_dataset(str(folder))
    assert (len(found.train), len(found.test)) == (41, 49)
    apart = read_dataset(DataSettings(data=f"{folder}/train-*", test_data=folder / "test-0.npz"))
    same(found, apart)
    (folder / "test-0.npz").rename(folder / "validation-0.npz")
    assert len(read_dataset(str(folder)).test) == 49
    (folder / "train-0.npz").rename(folder / "test-0.npz")
    with pytest.raises(UserError, match="holds test-..., train-..., validation-...: give one part by a pattern"):
        read_dataset(str(folder))


def table():
    days = [date(2024, 1, 1) + timedelta(days=i) for i in range(N)]
    numbers = [None if i % 7 == 0 else float(i * i) for i in range(N)]
    columns = {"n": numbers, "colour": [("red", "blue", None)[i % 3 - i % 2] for i in range(N)], "day": days}
    return pa.table({**columns, "id": [f"row {i}" for i in range(N)], "y": [("no", "yes")[i % 2] for i in range(N)]})


def write_parquet(folder, rows, **options):
    folder.mkdir()
    for i, (start, end) in enumerate(pairwise(CUTS)):
        pq.write_table(rows.slice(start, end - start), folder / f"part-{i}.parquet", **options)
    return folder


def test_parquet_files_are_the_table_that_one_file_is(tmp_path):
    folder = write_parquet(tmp_path / "shards", table(), row_group_size=16)
    pq.write_table(table(), tmp_path / "one.parquet")
    found = read_dataset(DataSettings(data=str(folder), label="y"))
    assert isinstance(found.train.inputs, Stored)
    same(found, read_dataset(DataSettings(data=str(tmp_path / "one.parquet"), label="y")))
    again, done = prepare(found)
    stored = read_dataset(DataSettings(data=str(folder), label="y"), classes=found.classes, stored=done)
    assert prepare(stored, done)[0].train.digest() == again.train.digest()  # as a run is resumed


def png(pixels):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def test_pictures_in_parquet_files_are_those_of_a_folder(tmp_path):
    pictures = [png(image.transpose(1, 2, 0)) for image in KINDS["bytes"]]
    order = np.argsort(Y, kind="stable")  # by class, as folders have them
    for place, i in enumerate(order):
        path = tmp_path / "folder" / f"c{Y[i]}" / f"{place:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pictures[i])
    cells = [{"bytes": pictures[i], "path": None} for i in order]
    rows = pa.table({"image": cells, "label": [f"c{Y[i]}" for i in order]})
    folder = write_parquet(tmp_path / "shards", rows, row_group_size=16)
    found = read_dataset(DataSettings(data=str(folder), label="label"))
    same(found, read_dataset(str(tmp_path / "folder")))
    pq.write_table(rows, tmp_path / "one.parquet")
    same(found, read_dataset(DataSettings(data=str(tmp_path / "one.parquet"), label="label")))


def test_rows_are_fetched_in_any_order_from_any_file(tmp_path):
    whole, places = RNG.random((50, 4)).astype(">f8"), []  # not of this machine's byte order
    for i, part in enumerate(np.split(whole, [7, 8, 30])):
        (tmp_path / str(i)).write_bytes(b"header" + part.tobytes())
        places.append(Place(str(i), (tmp_path / str(i)).open("rb", buffering=0), 6, len(part)))
    stored = Stored.of(Rows(tuple(places), (4,), whole.dtype))
    for rows in ([49, 0, 7, 8, 6, 7], [], [*range(50)], RNG.integers(0, 50, 200).tolist()):
        assert torch.equal(stored[torch.tensor(rows, dtype=torch.long)], torch.from_numpy(whole[rows].astype("f4")))
    (tmp_path / "3").write_bytes(b"cut")
    with pytest.raises(UserError, match="3 has become shorter while it was read"):
        stored[torch.tensor([49])]


def test_a_run_on_shards_is_the_run_on_one_file_also_when_it_is_resumed(tmp_path):
    folder = write_npz(tmp_path / "shards", KINDS["bytes"])
    np.savez(tmp_path / "one.npz", x=KINDS["bytes"], y=Y)
    known = Settings(model="convnet", width=4, epochs=2, batch_size=16, device="cpu", augmentation="crop+flip")
    known = replace_settings(known, calibration_fraction=0.25, cross_fit=False)
    asked = iter(range(100))
    with pytest.raises(StoppedError):
        stop = lambda: next(asked) == 5  # noqa: E731
        train(replace_settings(known, data=str(folder), out=tmp_path / "a"), progress=False, should_stop=stop)
    runs = (
        resume(tmp_path / "a", progress=False),
        train(replace_settings(known, data=str(tmp_path / "one.npz"), out=tmp_path / "b"), progress=False),
    )
    one, other = (replace(run.metrics, seconds=0.0) for run in runs)
    assert one == other
    measured = [evaluate_run(runs[0], on=place) for place in (folder, tmp_path / "one.npz")]
    assert measured[0] == measured[1]


def replace_settings(settings, **changes):
    return Settings.model_validate({**settings.model_dump(), **changes})


@pytest.mark.long
def test_processes_share_shards(tmp_path):
    write_npz(tmp_path / "shards", KINDS["bytes"])
    flags = ("--data", "shards", "--model", "mlp", "--width", 8, "--depth", 1, "--epochs", 2, "--batch-size", 16)
    for count in (1, 2):
        lipscale("train", *flags, "--out", f"run-{count}", "--processes", count, cwd=tmp_path)
    one, two = (run.metrics for run in map(load, (tmp_path / "run-1", tmp_path / "run-2")))
    assert two.lipschitz_constant == pytest.approx(one.lipschitz_constant, rel=1e-3)
    assert (tmp_path / "run-1" / "data.json").read_text() == (tmp_path / "run-2" / "data.json").read_text()


MEMORY = """
import resource, sys
from lipscale import Settings, train
from lipscale.data.batches import epoch_batches
from lipscale.runs.assembly import read_data
peaks = []
for i, data in enumerate(sys.argv[2:]):
    how = {"model": "mlp", "width": 4, "depth": 1, "epochs": 1, "batch_size": 64, "device": "cpu"}
    if sys.argv[1] == "train":
        train(Settings(data=data, out=f"run-{i}", **how), progress=False)
    else:
        samples = read_data(Settings(data=data))[0].train
        samples.digest()
        for _ in epoch_batches(samples, 64, augmentation="none", seed=0, stream=("train",)):
            pass
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(peaks[1] - peaks[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "kind", "bound"),
    [
        ("read", "images", 64),
        pytest.param("train", "images", 192, marks=pytest.mark.long),
        pytest.param("train", "table", 128, marks=pytest.mark.long),
    ],
)
def test_data_three_times_as_large_as_the_bound_are_gone_through_within_it(tmp_path, work, kind, bound):
    """So many megabytes more than a few of the samples take."""
    shape, size = ((3, 64, 64), 3 * 64 * 64) if kind == "images" else ((150,), 150 * 8)
    for name, files, rows in (("small", 1, 3000), ("large", 5, 3 * bound * 2**20 // size // 5 + 1)):
        (tmp_path / name).mkdir()
        for i in range(files):
            x = RNG.integers(0, 256, (rows, *shape), np.uint8) if kind == "images" else RNG.normal(size=(rows, *shape))
            np.savez(tmp_path / name / f"{i}.npz", x=x, y=np.arange(rows) % 2)
    assert sum(path.stat().st_size for path in (tmp_path / "large").iterdir()) > 3 * bound * 2**20
    command = [sys.executable, "-c", MEMORY, work, "small", "large"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < bound


BAD = {
    "another shape": (
        lambda f: np.savez(f, x=KINDS["grey"], y=Y),
        "has inputs of uint8 of shape (1, 8, 8), and part-0",
    ),
    "another kind": (lambda f: np.savez(f, x=KINDS["numbers"], y=Y), "has inputs of float32 of shape (3, 8, 8), and"),
    "no x": (lambda f: np.savez(f, y=Y), "expected x and y, got y"),
    "other classes": (lambda f: np.savez(f, x=KINDS["bytes"], y=Y, classes=["x", "y", "z"]), "has other classes than"),
    "no sample": (lambda f: np.savez(f, x=KINDS["bytes"][:0], y=Y[:0]), "is empty: remove it"),
    "labels too few": (lambda f: np.savez(f, x=KINDS["bytes"], y=Y[:9]), "has 90 inputs but 9 labels"),
    "a negative label": (lambda f: np.savez(f, x=KINDS["bytes"], y=Y - 1), "label -1 of sample 0 is negative"),
    "its own test part": (lambda f: np.savez(f, x=KINDS["bytes"], y=Y, x_test=Y), "has a test part of its own"),
    "columns first": (lambda f: np.savez(f, x=np.asfortranarray(KINDS["bytes"]), y=Y), "column by column"),
    "cut off": (lambda f: f.write_bytes((f.parent / "part-0.npz").read_bytes()[:3000]), "cannot read"),
    "nothing": (lambda f: f.write_bytes(b""), "cannot read"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_npz_file_is_named_in_one_line(tmp_path, case):
    folder = write_npz(tmp_path / "shards", KINDS["bytes"], classes=["a", "b", "c"])
    write, message = BAD[case]
    write(folder / "part-1.npz")
    with pytest.raises(UserError) as caught:
        read_dataset(str(folder))
    assert message in str(caught.value)
    assert "part-1.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_byte_that_was_changed_in_a_file_is_found(tmp_path, save):
    folder = write_npz(tmp_path / "shards", KINDS["bytes"], save=save)
    raw = bytearray((folder / "part-2.npz").read_bytes())
    raw[4000] ^= 1  # amid the pixels
    (folder / "part-2.npz").write_bytes(raw)
    with pytest.raises(UserError, match="part-2.npz as an .npz file"):
        read_dataset(str(folder))


def test_numbers_that_are_no_pixels_are_named_with_their_file(tmp_path):
    x = KINDS["numbers"].copy()
    x[60, 0, 0, 0] = np.nan
    folder = write_npz(tmp_path / "nan", x)
    with pytest.raises(UserError, match="part-2.npz: sample 19 holds NaN"):
        read_dataset(str(folder))
    with pytest.raises(UserError, match=r"part-0.npz: images are bytes or numbers in \[0, 1\], got 0"):
        read_dataset(str(write_npz(tmp_path / "large", 10 * KINDS["numbers"])))


BAD_TABLES = {
    "a column less": (lambda rows: rows.drop_columns("day"), "part-1.parquet has no column 'day', and part-0"),
    "a column more": (
        lambda rows: rows.append_column("z", pa.array([1])),
        "part-0.parquet has no column 'z', and part-1",
    ),
    "another type": (
        lambda rows: rows.set_column(0, "n", pa.array(["many"])),
        "part-1.parquet: column 'n' holds string, and double in part-0.parquet",
    ),
    "no row": (lambda rows: rows.slice(0, 0), "part-1.parquet is empty"),
    "another class": (lambda rows: rows.set_column(4, "y", pa.array(["maybe"])), "row 1 of part-1.parquet: column 'y'"),
    "no label": (lambda rows: rows.set_column(4, "y", pa.array([None], pa.string())), "row 1 of part-1.parquet"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_parquet_file_is_named_in_one_line(tmp_path, case):
    folder = write_parquet(tmp_path / "shards", table())
    change, message = BAD_TABLES[case]
    pq.write_table(change(pq.read_table(folder / "part-1.parquet")), folder / "part-1.parquet")
    with pytest.raises(UserError) as caught:
        read_dataset(DataSettings(data=str(folder), label="y"))
    assert message in str(caught.value)


def test_a_damaged_parquet_file_or_picture_is_named_in_one_line(tmp_path):
    rows = pa.table({"image": [{"bytes": png(KINDS["grey"][i])} for i in range(N)], "label": Y})
    folder = write_parquet(tmp_path / "shards", rows)
    pictures = DataSettings(data=str(folder), label="label")
    half = rows.slice(41).to_pydict()
    for cell, message in ((b"no picture", "row 3 as a picture"), (None, "row 3 holds no picture")):
        half["image"][2] = {"bytes": cell}
        pq.write_table(pa.table(half, rows.schema), folder / "part-2.parquet")
        with pytest.raises(UserError, match=f"part-2.parquet, {message}"):
            read_dataset(pictures)
    (folder / "part-2.parquet").write_bytes((folder / "part-0.parquet").read_bytes()[:-100])
    with pytest.raises(UserError, match="cannot read .*part-2.parquet"):
        read_dataset(pictures)


def test_what_is_no_set_of_shards_is_said(tmp_path):
    folder = write_npz(tmp_path / "shards", KINDS["bytes"])
    for data, label, message in (
        (f"{folder}/x-*.npz", None, "no file is called like"),
        (folder, "y", "`label` is for tables"),
        (
            write_parquet(tmp_path / "tables", table()),
            None,
            "which column is the class? Give `label`, one of n, colour",
        ),
    ):
        with pytest.raises(UserError, match=message.replace("?", r"\?")):
            read_dataset(DataSettings(data=str(data), label=label))
    (folder / "more.parquet").write_bytes((tmp_path / "tables" / "part-0.parquet").read_bytes())
    with pytest.raises(UserError, match="expected .npz files or Parquet files alone, got .npz, .parquet"):
        read_dataset(str(folder))
