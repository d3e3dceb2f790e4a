"""Answers for raw rows: every kind of input gives the same ones, and files carry all that was asked for."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from conftest import centred
from lipscale import models, set_lipschitz
from lipscale.data import DataSettings, Preprocessing, load_dataset, prepare
from lipscale.errors import UserError
from lipscale.runs.predict import ALL, as_bytes, predict_files
from lipscale.runs.run import Run
from lipscale.settings import Settings
from makers import table_rows, write_csv, write_folder


def run_on(preprocessing, classes, *, inputs, label=None):
    """A run with a network that nobody has trained: its answers are as good as any to compare."""
    torch.manual_seed(0)
    net = models.mlp(len(classes), preprocessing.input_shape, 16)
    set_lipschitz(net, 5.0)
    settings = Settings(label=label, model="mlp", width=16, batch_size=8)
    return Run(Path("run"), settings, centred(net, inputs), classes, preprocessing, None)


@pytest.fixture
def table(tmp_path):
    """A run on a table of two numbers and a category, and the table's file."""
    path = write_csv(tmp_path / "t.csv", table_rows())
    ready, done = prepare(load_dataset(DataSettings(data=str(path), label="y")))
    return run_on(done, ready.classes, inputs=ready.train.inputs, label="y"), path


@pytest.fixture
def pictures(tmp_path):
    """A run on pictures, and the folder with class folders."""
    folder = write_folder(tmp_path / "set", size=(6, 6), n=3)
    inputs = torch.rand(20, 3, 6, 6)
    return run_on(Preprocessing((3, 6, 6), (0.5,) * 3), ("cat", "dog"), inputs=inputs), folder


def columns(rows):
    a, b, kind, _ = zip(*rows, strict=True)
    return {"kind": list(kind), "a": list(map(float, a)), "more": [None] * len(a), "b": list(map(float, b))}


class TestRun:
    def test_probabilities_are_the_softmax_of_the_network_in_the_order_of_the_classes(self, table):
        run, path = table
        found = run.predict_proba(path)
        inputs = prepare(load_dataset(DataSettings(data=str(path), label="y", test_fraction=0.01)), run.preprocessing)
        assert found.shape == (120, 3)
        np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)
        expected = torch.softmax(run.net(inputs[0].test.inputs), 1).detach().numpy()
        near = np.abs(found[:, None] - expected[None]).max(2).min(0)  # the held-out rows are among them
        assert near.max() < 1e-5
        assert run.predict(path).tolist() == [run.classes[i] for i in found.argmax(1)]

    def test_a_frame_is_read_as_the_file_is(self, table):
        run, path = table
        pandas = pytest.importorskip("pandas")
        expected = run.predict_proba(path)
        frame = pandas.read_csv(path)[["y", "kind", "b", "a"]]
        frame["kind"] = frame["kind"].astype("category")
        frame.index = frame.index[::-1]
        for rows in (frame, str(path), [path], pa.table(columns(table_rows())), columns(table_rows())):
            np.testing.assert_array_equal(run.predict_proba(rows), expected)
        one = run.predict_proba([{"kind": "red", "b": 1000, "a": None}])
        np.testing.assert_allclose(one.sum(), 1)

    def test_what_a_frame_lacks_is_named(self, table):
        run, _ = table
        with pytest.raises(UserError, match="the table has no columns 'b', 'kind'"):
            run.predict({"a": [1.0]})
        with pytest.raises(UserError, match="the table, row 2: column 'a' holds numbers but here 'x'"):
            run.predict({"a": ["1", "x"], "b": [1, 2], "kind": ["red", "red"]})
        with pytest.raises(UserError, match="the array: the run's table has categories"):
            run.predict(np.zeros((2, 3)))

    def test_arrays_tensors_and_missing_numbers(self, tmp_path):
        rows = [row[:2] + row[3:] for row in table_rows()]
        path = write_csv(tmp_path / "t.csv", rows, header=("a", "b", "y"))
        ready, done = prepare(load_dataset(DataSettings(data=str(path), label="y")))
        run = run_on(done, ready.classes, inputs=ready.train.inputs)
        raw = np.array([[float(a), float(b)] for a, b, _ in rows])
        expected = run.predict_proba(path)
        for given in (raw, torch.from_numpy(raw), raw.tolist()):
            np.testing.assert_array_equal(run.predict_proba(given), expected)
        mean = [[done.column_mean[0], raw[0, 1]]]
        np.testing.assert_allclose(run.predict_proba([[np.nan, raw[0, 1]]]), run.predict_proba(mean), atol=1e-12)
        for bad in ([[1.0, np.inf]], [[1.0]], [["a", "b"]], [[1.0], [1.0, 2.0]], None):
            with pytest.raises(UserError, match="expected|infinite"):
                run.predict(bad)

    def test_pictures_paths_folders_and_pixels(self, pictures):
        run, folder = pictures
        paths = sorted(folder.rglob("*.png"))
        expected = run.predict_proba(folder)
        opened = [Image.open(path) for path in paths]
        pixels = np.stack([np.asarray(picture).transpose(2, 0, 1) for picture in opened])
        for rows in (paths, opened, pixels, torch.from_numpy(pixels), pixels / 255):
            np.testing.assert_allclose(run.predict_proba(rows), expected, atol=1e-6)
        np.testing.assert_array_equal(run.predict_proba(opened[0]), run.predict_proba(pixels[0]))
        assert set(run.predict(folder)) <= {"cat", "dog"}


class TestFiles:
    def test_kept_columns_and_the_truth_stand_beside_every_probability(self, table, tmp_path):
        run, _ = table
        rows = [[f"0{i}", *row, "x"] for i, row in enumerate(table_rows(9))]
        path = write_csv(tmp_path / "new.csv", rows, header=("id", "a", "b", "kind", "y", "name"))
        answers = predict_files(run, [path], keep=("name", "id"))
        found = json.loads(as_bytes(answers, ".json"))
        assert [row["id"] for row in found] == [f"0{i}" for i in range(9)]
        assert [row["true_y"] for row in found] == [row[4] for row in rows]
        assert [*found[0]][:4] == ["source", "name", "id", "true_y"]
        every = run.predict_proba(path)
        np.testing.assert_array_equal([[row[f"p_{c}"] for c in run.classes] for row in found], every)
        (tmp_path / "out.parquet").write_bytes(as_bytes(answers, ".parquet"))
        assert pq.read_table(tmp_path / "out.parquet").to_pylist() == found
        head, first, *_ = as_bytes(answers, ".csv").decode().splitlines()
        assert dict(zip(head.split(","), first.split(","), strict=True))["p_class0"] == str(every[0, 0])

    def test_what_cannot_be_kept_is_named(self, table, tmp_path):
        run, path = table
        with pytest.raises(UserError, match=r"t\.csv has no column 'knd' \(to keep\); did you mean 'kind'"):
            predict_files(run, [path], keep=("knd",))
        rows = [[*row, "1"] for row in table_rows(3)]
        clash = write_csv(tmp_path / "clash.csv", rows, header=("a", "b", "kind", "y", "radius"))
        with pytest.raises(UserError, match="cannot keep the column 'radius'"):
            as_bytes(predict_files(run, [clash], keep=("radius",)), ".csv")

    def test_class_folders_tell_the_truth_and_flat_ones_do_not(self, pictures):
        run, folder = pictures
        seen = []
        answers = predict_files(run, [folder], on_progress=lambda *count: seen.append(count))
        assert [a.kept["true_class"] for a in answers] == ["cat"] * 3 + ["dog"] * 3
        assert [Path(a.source).parent.name for a in answers] == ["cat"] * 3 + ["dog"] * 3
        assert seen == [("inputs", 6, 6)]
        flat = predict_files(run, [folder / "dog", folder / "cat" / "001.png"])
        assert [a.kept for a in flat] == [{}] * 4
        for one, other in zip(flat[:3], answers[3:], strict=True):
            assert one.probabilities == pytest.approx(other.probabilities, abs=1e-12)
        with pytest.raises(UserError, match="is no table: it has no column 'id' to keep"):
            predict_files(run, [folder], keep=("id",))

    def test_labels_of_arrays_are_repeated(self, pictures, tmp_path):
        run, _ = pictures
        x = np.random.default_rng(0).random((4, 3, 6, 6))
        np.savez(tmp_path / "x.npz", x=x, y=np.array([0, 1, 1, 0]))
        answers = predict_files(run, [tmp_path / "x.npz"])
        assert [a.kept["true_class"] for a in answers] == ["cat", "dog", "dog", "cat"]
        np.savez(tmp_path / "x.npz", x=x, y=np.array([0, 1, 7, 0]))
        assert predict_files(run, [tmp_path / "x.npz"])[0].kept == {}

    def test_radii_of_single_columns_and_rows_far_outside(self, table, tmp_path):
        run, _ = table
        done = run.preprocessing
        rows = [["0", "1000", "red", "7"], ["1e9", "", "red", "7"]]
        new = write_csv(tmp_path / "new.csv", rows, header=("a", "b", "kind", "id"))
        first, second = (a.row() for a in predict_files(run, [new], radii_of=[ALL]))
        assert first["radius_b"] == pytest.approx(first["radius"] * done.column_std[1], rel=1e-5)
        assert [name for name in first if name.startswith("radius_")] == ["radius_a", "radius_b"]
        assert (second["radius_b"], first["outside"], second["outside"]) == (None, "", "a")
        assert predict_files(run, [new], radii_of=["id"])[0].radii == {"id": float("inf")}
        assert json.loads(as_bytes(predict_files(run, [new], radii_of=["id"]), ".json"))[0]["radius_id"] == "inf"
        for name, problem in (("kind", "'kind' holds categories"), ("bb", "no column 'bb'")):
            with pytest.raises(UserError, match=problem):
                predict_files(run, [new], radii_of=[name])
