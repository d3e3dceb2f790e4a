"""Ctrl-C, as a terminal sends it, to all processes at once: it ends in a line, not in a traceback, and work goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from experiment_makers import TINY


def started(folder, *arguments):
    command = [sys.executable, "-m", "lipscale", *arguments]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)


def interrupted(process):
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=120)[1].strip().splitlines()


def has_workers(parent):
    """Whether processes of a plan have been started, which then import torch for seconds."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return any(b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children)


def test_while_processes_are_still_starting(tmp_path):
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({"settings": {**TINY, "epochs": 2}, "seeds": [0, 1]}))
    process = started(tmp_path, "sweep", "grid.yaml", "--jobs", "2")
    until = time.monotonic() + 120
    while not has_workers(process.pid) and time.monotonic() < until:
        time.sleep(0.02)
    lines = interrupted(process)
    assert process.returncode == 130
    assert lines[-1] == "Stopped. What is finished is kept: the same command goes on."
    assert len(lines) == 2
    wide = {**os.environ, "COLUMNS": "120"}
    again = subprocess.run(process.args, cwd=tmp_path, env=wide, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "* is the best of its column" in again.stdout  # and the table is shown
    assert "list xi = 0" in again.stdout
