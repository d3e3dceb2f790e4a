"""What a run survives: death at any write, signals, a full disk, a folder that may not be written to, a rival."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import lipscale
from conftest import lipscale as console
from lipscale import _files
from lipscale.errors import StoppedError, UnwritableError, UserError
from lipscale.runs import lock as folder_lock
from lipscale.runs import resume
from lipscale.runs.predict import predict
from lipscale.settings import Settings, replace
from makers import table_rows, write_csv

QUICK = Settings(limit=150, model="convnet", width=4, epochs=2, phase2_epochs=1, batch_size=50, device="cpu")
QUICK = replace(QUICK, calibration_fraction=0.1)


def outcome(folder):
    """All that a run is: metrics and history without the time they took, and the weights to the bit."""

    def timeless(values):
        return {key: value for key, value in values.items() if "seconds" not in key}

    metrics = timeless(json.loads((folder / "metrics.json").read_text()))
    history = [timeless(json.loads(line)) for line in (folder / "history.jsonl").read_text().splitlines()]
    return metrics, history, (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    lipscale.train(replace(QUICK, out=folder))
    return outcome(folder)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_child(work):
    """Run in a forked process; how it ended. Forking saves the seconds that importing torch takes."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def dying_at(write, moment):
    """Files are written as ever until a given write, in the middle of which or after which the process is killed."""
    original, count = _files.write_atomically, iter(range(10**6))

    def killing(path, data):
        if next(count) < write:
            return original(path, data)
        if moment == "after":
            original(path, data)
        if moment == "within":
            path.with_name(path.name + ".partial").write_bytes(data[: len(data) // 2])
        if moment == "within the rename":
            path.with_name(path.name + ".partial").write_bytes(data)
        return die()

    return killing


# data, versions, settings, three checkpoints, model, predictions, metrics
@pytest.mark.long
@pytest.mark.parametrize("moment", ["within", "within the rename", "after"])
@pytest.mark.parametrize("write", range(9))
def test_death_at_every_write(tmp_path, monkeypatch, whole, write, moment):
    folder = tmp_path / "run"

    def work():
        killing = dying_at(write, moment)
        for module in ("lipscale.runs.trainer", "lipscale.runs.folder", "lipscale._files"):
            monkeypatch.setattr(f"{module}.write_atomically", killing)
        lipscale.train(replace(QUICK, out=folder))

    assert in_a_child(work) == -signal.SIGKILL
    if (folder / "settings.yaml").exists():
        resume(folder)
    else:  # it was no run yet: the same command starts it, in the same folder
        lipscale.train(replace(QUICK, out=folder))
    assert outcome(folder) == whole
    assert not list(folder.glob("*.partial"))


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 6, 7, 9])  # three batches an epoch; the last three are Phase II's
def test_a_stop_after_any_batch_loses_nothing(tmp_path, whole, batch):
    asked = iter(range(1, 10**6))
    folder = tmp_path / "run"
    with pytest.raises(StoppedError, match=re.escape(f"go on with lipscale.resume('{folder}')")):
        lipscale.train(replace(QUICK, out=folder), should_stop=lambda: next(asked) == batch)
    resume(folder)
    assert outcome(folder) == whole


def test_stops_may_come_again_and_again(tmp_path, whole):
    folder = tmp_path / "run"
    with pytest.raises(StoppedError):
        lipscale.train(replace(QUICK, out=folder), should_stop=lambda: True)
    for _ in range(8):
        with pytest.raises(StoppedError):
            resume(folder, should_stop=lambda: True)
    resume(folder, should_stop=lambda: True)  # no batch is left to stop after
    assert outcome(folder) == whole


@pytest.mark.parametrize("changes", [{"augmentation": "crop+flip"}, {"optimizer": "schedulefree", "feedback": "paper"}])
def test_other_settings_go_on_in_the_middle_of_an_epoch(tmp_path, changes):
    settings = replace(QUICK, **changes)
    lipscale.train(replace(settings, out=tmp_path / "whole"))
    asked = iter(range(1, 10**6))
    with pytest.raises(StoppedError):
        lipscale.train(replace(settings, out=tmp_path / "run"), should_stop=lambda: next(asked) == 2)
    resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


@pytest.mark.long
@pytest.mark.parametrize(("name", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_finish_the_batch_save_and_say_how_to_go_on(tmp_path, name, code):
    script = Path(sys.executable).with_name("lipscale")
    flags = ["--limit", "500", "--model", "convnet", "--width", "8", "--batch-size", "20", "--device", "cpu"]
    flags += ["--epochs", "4", "--phase2-epochs", "2"]
    console("train", *flags, "--out", tmp_path / "whole")
    command = [str(script), "train", *flags, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    history = tmp_path / "run" / "history.jsonl"
    deadline = time.monotonic() + 120
    while not history.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(name)
    _, error = process.communicate(timeout=120)
    assert process.returncode == code
    assert f"go on with lipscale train --resume {tmp_path / 'run'}" in error
    assert "Traceback" not in error
    assert not (tmp_path / "run" / "metrics.json").exists()
    console("train", "--resume", tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_two_processes_cannot_share_a_run_folder(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(StoppedError):
        lipscale.train(replace(QUICK, out=folder), should_stop=lambda: True)

    def rival():
        with pytest.raises(UserError, match="another process works on"):
            resume(folder)

    with folder_lock.locked(folder):
        assert in_a_child(rival) == 0
    resume(folder)  # the lock is gone with its holder


def test_a_killed_process_leaves_no_lock(tmp_path):
    def hold():
        with folder_lock.locked(tmp_path):
            die()

    assert in_a_child(hold) == -signal.SIGKILL
    with folder_lock.locked(tmp_path):
        pass


@contextmanager
def largest_file(size):
    """A disk on which no file may grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_keeps_the_last_good_checkpoint(tmp_path, whole):
    folder = tmp_path / "run"
    size = 0

    def fill(epoch):
        nonlocal size
        size = (folder / "checkpoint.safetensors").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))

    with (
        largest_file(resource.RLIM_INFINITY),
        pytest.raises(UnwritableError, match="what was saved before is intact") as caught,
    ):
        lipscale.train(replace(QUICK, out=folder), on_epoch=fill)
    assert "checkpoint.safetensors" in str(caught.value)
    assert f"go on with lipscale.resume('{folder}')" in str(caught.value)
    assert (folder / "checkpoint.safetensors").stat().st_size == size
    assert not list(folder.glob("*.partial"))  # on a full disk its space is wanted back
    resume(folder)
    assert outcome(folder) == whole


def test_a_disk_that_is_full_at_the_start_leaves_nothing(tmp_path):
    with largest_file(10), pytest.raises(UnwritableError, match="cannot write"):
        lipscale.train(replace(QUICK, out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def mounted(folder, *options):
    """A small file system of its own, where this process may mount one."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("this process may not mount a file system")
    return folder


def test_a_really_full_disk(tmp_path, whole):
    disk = mounted(tmp_path / "disk", "size=600k")
    try:

        def fill(epoch):
            with pytest.raises(OSError, match="No space left"), (disk / "ballast").open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

        with pytest.raises(UnwritableError, match="No space left on device; what was saved before is intact"):
            lipscale.train(replace(QUICK, out=disk / "run"), on_epoch=fill)
        (disk / "ballast").unlink()
        resume(disk / "run")
        assert outcome(disk / "run") == whole
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_read_only_folder_is_named(tmp_path):
    disk = mounted(tmp_path / "disk", "size=4m")
    try:
        with pytest.raises(StoppedError):
            lipscale.train(replace(QUICK, out=disk / "run"), should_stop=lambda: True)
        before = (disk / "run" / "checkpoint.safetensors").read_bytes()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(UserError, match="Read-only file system"):
            resume(disk / "run")
        with pytest.raises(UserError, match="cannot create the run folder .*Read-only"):
            lipscale.train(replace(QUICK, out=disk / "other"))
        assert (disk / "run" / "checkpoint.safetensors").read_bytes() == before
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_changed_data_are_noticed(tmp_path, caplog):
    rows = table_rows(100)
    path = write_csv(tmp_path / "t.csv", rows)
    quick = Settings(data=str(path), label="y", epochs=2, phase2_epochs=0, width=8, device="cpu", out=tmp_path / "run")
    with pytest.raises(StoppedError):
        lipscale.train(quick, should_stop=lambda: True)
    write_csv(path, [[*rows[0][:3], rows[1][3]], *rows[1:]])  # one label
    with pytest.raises(UserError, match="data of .*run are not what they were"):
        resume(tmp_path / "run")
    write_csv(tmp_path / "moved.csv", rows)  # elsewhere, but the same
    settings = tmp_path / "run" / "settings.yaml"
    settings.write_text(settings.read_text().replace(str(path), str(tmp_path / "moved.csv")))
    path = tmp_path / "moved.csv"
    run = resume(tmp_path / "run")
    write_csv(path, [[str(2 * float(row[0])), *row[1:]] for row in rows])
    lipscale.runs.evaluate_run(run)
    assert "the test data of" in caplog.text


def test_other_categories_today_do_not_move_those_of_a_run(tmp_path):
    rows = table_rows(100)
    path = write_csv(tmp_path / "t.csv", rows)
    quick = Settings(data=str(path), label="y", epochs=1, phase2_epochs=0, width=8, device="cpu", out=tmp_path / "run")
    run = lipscale.train(quick)
    write_csv(path, [[*row[:2], "aquamarine", row[3]] if i % 7 == 0 else row for i, row in enumerate(rows)])
    lipscale.runs.evaluate_run(run)
    assert lipscale.load(run.folder).preprocessing.columns[2].categories == ("blue", "green", "red")


def test_leftovers_of_a_run_that_never_began_are_taken_over_and_nothing_else(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "data.json").write_text("half")
    (folder / "settings.yaml.partial").write_text("half")
    lipscale.train(replace(QUICK, epochs=1, phase2_epochs=0, out=folder))
    other = tmp_path / "other"
    other.mkdir()
    (other / "data.json").write_text("half")
    (other / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="exists"):
        lipscale.train(replace(QUICK, out=other))
    shutil.rmtree(other)
    other.write_text("a file")
    with pytest.raises(UserError, match="is a file"):
        lipscale.train(replace(QUICK, out=other))


def test_mid_epoch_checkpoints_hold_the_training_weights(tmp_path):
    with pytest.raises(StoppedError):
        settings = replace(QUICK, optimizer="schedulefree", feedback="paper", out=tmp_path / "run")
        lipscale.train(settings, should_stop=lambda: True)
    _, values = _files.load_tensors(tmp_path / "run" / "checkpoint.safetensors")
    assert values["stopped"]["batches"] == 1
    assert values["param_groups"][0][0]["train_mode"]
    assert np.isfinite(values["stopped"]["sums"]).all()
    assert torch.tensor(values["stopped"]["sums"]).shape == (3,)


def test_settings_that_change_while_a_run_is_made_are_noticed(tmp_path):
    settings = Settings(
        epochs=2, phase2_epochs=0, width=8, limit=200, cross_fit=False, device="cpu", out=tmp_path / "run"
    )

    def meddle(epoch):
        path = tmp_path / "run" / "settings.yaml"
        path.write_text(path.read_text().replace("depth: 3", "depth: 4"))

    with pytest.raises(UserError, match="changed while it was trained"):
        lipscale.train(settings, on_epoch=meddle, progress=False)


def test_a_checkpoint_belongs_to_all_settings_of_its_run(tmp_path):
    settings = Settings(
        epochs=3, phase2_epochs=0, width=8, limit=200, cross_fit=False, device="cpu", out=tmp_path / "run"
    )
    seen = []
    with pytest.raises(StoppedError):
        lipscale.train(settings, on_epoch=seen.append, should_stop=lambda: len(seen) == 1, progress=False)
    path = tmp_path / "run" / "settings.yaml"
    path.write_text(path.read_text().replace("padding: zeros", "padding: circular"))
    with pytest.raises(UserError, match="no checkpoint of a run with these settings"):
        lipscale.resume(tmp_path / "run", progress=False)


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_a_pipe_in_place_of_settings_is_refused_at_once(tmp_path, command):
    os.mkfifo(tmp_path / "pipe.yaml")
    done = console(command, tmp_path / "pipe.yaml", check=False)
    assert done.returncode == 2
    assert "pipe.yaml" in done.stderr


@pytest.mark.slow
def test_flipped_bits_are_noticed_or_change_no_answer(tmp_path):
    """300 bits over all files of a finished run, one at a time: nobody gets another answer without an error."""
    write_csv(tmp_path / "rows.csv", table_rows(120))  # a table, whose data.json decides on every answer
    settings = Settings(data=str(tmp_path / "rows.csv"), label="y", width=8, epochs=2, phase2_epochs=0, device="cpu")
    folder = lipscale.train(replace(settings, out=tmp_path / "run"), progress=False).folder
    inputs = torch.randn(50, *lipscale.load(folder).preprocessing.input_shape)

    def answers():
        run = lipscale.load(folder)
        return predict(run, inputs, [str(i) for i in range(50)], epsilon=0.1)

    before = answers()
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.stat().st_size)
    generator, noticed = np.random.default_rng(0), 0
    for number in range(300):
        path = files[number % len(files)]
        good = path.read_bytes()
        bad = bytearray(good)
        bad[generator.integers(len(bad))] ^= 1 << generator.integers(8)
        path.write_bytes(bytes(bad))
        try:
            assert answers() == before, path.name
        except UserError:
            noticed += 1
        path.write_bytes(good)
    assert noticed > 50
    assert answers() == before
