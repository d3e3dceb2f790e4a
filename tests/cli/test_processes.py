"""`--processes` and torchrun, as people use them: real processes, killed and stopped for real."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import lipscale
from lipscale import Settings, train
from lipscale.cli.signals import StopRequest
from lipscale.runs.folder import CHECKPOINT, METRICS
from lipscale.training.checkpoint import saved_history
from lipscale.training.epoch import counted

SETTINGS = {"limit": 200, "model": "mlp", "width": 8, "depth": 1, "device": "cpu"}
SMALL = [str(part) for name, value in SETTINGS.items() for part in (f"--{name}", value)]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def workers_of(launcher):
    return [int(line) for line in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture
def training(tmp_path):
    """A long training on two processes that has saved an epoch; whatever becomes of it, nothing stays behind."""
    command = [sys.executable, "-m", "lipscale", "train", *SMALL, "--epochs", "3000", "--out", "run"]
    process = subprocess.Popen(
        [*command, "--processes", "2"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=ONE_THREAD
    )
    try:
        wait_for((tmp_path / "run" / CHECKPOINT).exists)
        yield process
    finally:
        process.kill()


def test_two_processes_of_the_command_line_end_as_one_does(tmp_path):
    lipscale("train", *SMALL, "--epochs", 3, "--out", tmp_path / "two", "--processes", 2, env=ONE_THREAD)
    one = train(Settings(**SETTINGS, epochs=3, out=tmp_path / "one"), progress=False).metrics
    two = json.loads((tmp_path / "two" / METRICS).read_text())
    for key in ("accuracy", "ece", "lipschitz_constant", "temperature"):
        assert two[key] == pytest.approx(getattr(one, key), rel=1e-2), key  # in float32, where the order of sums counts


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_leaves_a_good_checkpoint(tmp_path, training):
    workers = workers_of(training.pid)
    os.kill(workers[1], signal.SIGKILL)
    _, told = training.communicate(timeout=60)
    assert training.returncode == 2
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    first, second = (line for line in told.splitlines() if line.startswith("lipscale: "))
    assert "another process of this training has ended" in first
    assert first.endswith("go on with lipscale train --resume run")
    assert second == "lipscale: process 1 was killed by SIGKILL, and the others have ended, too"
    assert saved_history(tmp_path / "run" / CHECKPOINT)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_after_the_same_batch(tmp_path, training, number):
    training.send_signal(number)
    _, told = training.communicate(timeout=60)
    assert training.returncode == 128 + number
    done = counted(len(saved_history(tmp_path / "run" / CHECKPOINT)), "whole epoch")
    assert f"Stopped after {done} of Phase I, all is saved" in told
    assert told.count("Stopp") == 2


def test_a_process_stops_where_its_launcher_is_gone(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    request = StopRequest()
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert not request()  # a shell may end while its command goes on
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert request()
    assert request.exit_code == 128 + signal.SIGTERM
    assert not StopRequest()()


@pytest.mark.long
def test_a_killed_launcher_leaves_no_process_and_a_good_checkpoint(tmp_path, training):
    workers = workers_of(training.pid)
    training.kill()
    _, told = training.communicate(timeout=60)  # until the last of them has closed it
    done = counted(len(saved_history(tmp_path / "run" / CHECKPOINT)), "whole epoch")
    assert f"Stopped after {done} of Phase I, all is saved" in told
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


@pytest.mark.parametrize(
    ("message", "flags"),
    [
        ("nowhere.csv does not exist", ("--data", "nowhere.csv")),
        pytest.param("2 processes cannot share a batch of 1", ("--batch-size", 1), marks=pytest.mark.long),
        pytest.param("batch normalisation", ("--method", "standard", "--model", "convnet"), marks=pytest.mark.long),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing(tmp_path, message, flags):
    done = lipscale("train", *SMALL[:2], *flags, "--processes", 2, cwd=tmp_path, check=False, env=ONE_THREAD)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize(
    ("here", "message"),
    [
        ("--offset $RANK --out ../run", "process 1 has other settings than process 0"),
        ("--limit 20$RANK --out ../run", "process 1 has other data than process 0"),
        ("--out run", "process 1: run/settings.yaml cannot be seen on"),
    ],
)
def test_processes_that_differ_are_told_and_leave_no_run(tmp_path, here, message):
    command = (
        f"mkdir w$RANK && cd w$RANK && exec {sys.executable} -m lipscale train {' '.join(SMALL)} --epochs 1 {here}"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    done = subprocess.run(
        [*torchrun, "sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, env=ONE_THREAD, timeout=120
    )
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("lipscale: "))
    assert message in line
    assert not list(tmp_path.rglob("run"))


def test_torchrun_has_started_the_processes_already():
    done = lipscale("train", "--processes", 2, check=False, env={"TORCHELASTIC_RUN_ID": "x", "RANK": "0"})
    assert "leave --processes out" in done.stderr
