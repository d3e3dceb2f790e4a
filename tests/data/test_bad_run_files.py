"""Settings, descriptions and files of runs that somebody has changed."""

import json
import pickle
import shutil
import struct
from dataclasses import asdict

import pytest

import lipscale
from lipscale.runs import load, resume
from lipscale.runs.settings_file import read_settings
from lipscale.settings import Settings
from makers import (
    refuses,
    table_rows,
    write_csv,
)

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
