"""Many runs at a time: real runs in real processes, damaged and killed for real."""

import csv
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from experiment_makers import TINY, stamps, tiny
from lipscale.errors import UnwritableError, UserError
from lipscale.experiments.making import LOCKS, finished, make
from lipscale.experiments.plan import AttackBudget, Row, shared
from lipscale.experiments.pool import carry_out
from lipscale.experiments.results import Results, read_result
from lipscale.experiments.sweep import read_grid, rows_of
from lipscale.runs.folder import CHECKPOINT, METRICS, MODEL, PREDICTIONS
from lipscale.runs.lock import locked


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three runs, made in two processes: one attacked, one that follows it, one of LiST."""
    folder = tmp_path_factory.mktemp("pool")
    unit = replace(tiny(method="fixed", lipschitz=1.0), attack=AttackBudget("pgd", 0.5, 20))
    plan = shared([unit, replace(tiny(method="fixed"), follows=unit, takes="lipschitz"), tiny()])
    return folder, plan, carry_out(plan, folder, jobs=2)


class TestPool:
    def test_all_are_made_and_what_follows_takes_over(self, made):
        folder, plan, outcome = made
        assert outcome.failed == []
        assert len(outcome.made) == 3
        unit, retrained, ours = (read_result(folder, run) for run in plan)
        assert retrained.constant == pytest.approx(1 / unit.metrics.temperature)
        assert unit.robust.samples == 20
        assert len(ours.history) == 2
        assert len(Results(folder, plan)) == 3
        assert Results(folder, plan).of(Row("x", tuple(plan)))[0].constant == 1

    def test_any_executor_will_do(self, tmp_path):
        unit = tiny(method="fixed", lipschitz=1.0)
        plan = [unit, replace(tiny(method="fixed"), follows=unit, takes="lipschitz")]
        with ThreadPoolExecutor(1) as executor:
            outcome = carry_out(plan, tmp_path, jobs=1, executor=executor)
        assert [run.digest for run in outcome.made] == [run.digest for run in plan]

    def test_an_executor_that_breaks_is_its_owners_to_mend(self, tmp_path):
        class Broken(ThreadPoolExecutor):
            def submit(self, *args, **kwargs):
                raise BrokenExecutor("gone")

        with Broken(1) as executor, pytest.raises(BrokenExecutor, match="gone"):
            carry_out([tiny(method="fixed")], tmp_path, jobs=1, executor=executor)

    def test_what_is_done_is_left_alone(self, made):
        folder, plan, _ = made
        before = stamps(folder)
        outcome = carry_out(plan, folder, jobs=2)
        assert (len(outcome.skipped), outcome.made) == (3, [])
        assert stamps(folder) == before

    @pytest.mark.parametrize("wreck", ["no metrics", "half a network", "half the predictions", "no answer", "a wreck"])
    def test_what_is_damaged_is_done_again_to_the_same_result(self, made, wreck):
        folder, plan, _ = made
        run = plan[2]
        place = folder / run.name
        good = (place / METRICS).read_text()
        if wreck in ("no metrics", "a wreck"):
            (place / METRICS).unlink()
        if wreck == "half a network":
            (place / MODEL).write_bytes((place / MODEL).read_bytes()[:500])
        if wreck == "half the predictions":
            (place / PREDICTIONS).write_bytes(b"")
        if wreck == "no answer":
            (place / METRICS).write_text("[]")
        if wreck == "a wreck":
            (place / CHECKPOINT).write_bytes(b"nothing good")
        assert not finished(folder, run)
        make(run, folder, should_stop=lambda: False)
        assert finished(folder, run)
        same = [re.sub(r'"(cpu_)?seconds": .*', "", text) for text in (good, (place / METRICS).read_text())]
        assert same[0] == same[1]

    def test_small_damage_is_mended_from_the_checkpoint(self, made):
        folder, plan, _ = made
        place = folder / plan[2].name
        checkpoint = stamps(place)[place / CHECKPOINT]
        (place / PREDICTIONS).write_bytes(b"")
        make(plan[2], folder, should_stop=lambda: False)
        assert finished(folder, plan[2])
        assert stamps(place)[place / CHECKPOINT] == checkpoint  # nothing was trained again

    def test_a_full_disk_or_missing_data_do_not_cost_a_good_checkpoint(self, made, monkeypatch, tmp_path):
        folder, plan, _ = made
        run = plan[2]
        place = folder / run.name
        (place / METRICS).unlink()
        before = stamps(place)
        for broken, error in (("evaluate", UnwritableError("no space")), ("read_data", UserError("no data"))):
            with monkeypatch.context() as patch:

                def fail(*_, error=error, **__):
                    raise error

                patch.setattr(f"lipscale.runs.trainer.{broken}", fail)
                with pytest.raises(UserError, match="no space|no data"):
                    make(run, folder, should_stop=lambda: False)
            assert stamps(place)[place / CHECKPOINT] == before[place / CHECKPOINT]
        make(run, folder, should_stop=lambda: False)
        assert finished(folder, run)

    def test_what_another_process_works_on_is_left_alone(self, made):
        folder, plan, _ = made
        with locked(folder / LOCKS / plan[2].name), pytest.raises(UserError, match="another process"):
            make(plan[2], folder, should_stop=lambda: False)

    def test_a_run_of_another_version_is_made_again(self, made, monkeypatch):
        folder, plan, _ = made
        monkeypatch.setattr("lipscale.experiments.results.version", lambda name: "999")
        assert not finished(folder, plan[2])

    @pytest.mark.long
    def test_a_killed_process_costs_nothing_but_time(self, tmp_path):
        plan = [tiny(epochs=80, seed=seed) for seed in range(2)]
        killed = []

        def kill_one():
            if not killed and (started := list(tmp_path.glob(f"*/{CHECKPOINT}"))):
                killed.append(started)
                os.kill(next(iter(children_of(os.getpid()))), signal.SIGKILL)
            return False

        outcome = carry_out(plan, tmp_path, jobs=2, should_stop=kill_one)
        assert killed
        assert outcome.failed == []
        assert {run.digest for run in outcome.made} == {run.digest for run in plan}

    def test_an_error_that_nobody_expected_is_that_runs_alone(self, tmp_path):
        bad = tiny(seed=3)
        (tmp_path / "runs" / bad.name / "wreck").mkdir(parents=True)
        (tmp_path / "runs" / f"{bad.name}.damaged").write_text("in the way")
        outcome = carry_out([bad, tiny()], tmp_path / "runs", jobs=1)
        assert len(outcome.made) == 1
        ((run, why),) = outcome.failed
        assert run.digest == bad.digest
        assert why.startswith("NotADirectoryError")

    def test_a_failed_run_takes_those_that_follow_it_along_and_no_other(self, tmp_path):
        bad = tiny(method="fixed", batch_size=100_000)
        plan = shared([replace(tiny(method="fixed"), follows=bad, takes="lipschitz"), tiny()])
        outcome = carry_out(plan, tmp_path, jobs=2)
        assert len(outcome.made) == 1
        (first, why), (second, consequence) = outcome.failed
        assert (first.digest, second.digest) == (plan[0].digest, plan[1].digest)
        assert "`batch_size` 100000 is larger" in why
        assert consequence == "the run that it follows has failed"

    @pytest.mark.long
    def test_killed_in_the_middle_it_goes_on_and_leaves_no_process_behind(self, tmp_path):
        grid = {"settings": {**TINY, "epochs": 30}, "methods": ["list"], "seeds": [0, 1, 2]}
        (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
        command = [sys.executable, "-m", "lipscale", "sweep", "grid.yaml", "--jobs", "2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
        runs = tmp_path / "sweeps" / "grid" / "runs"
        until = time.monotonic() + 240
        while not list(runs.glob(f"*/{CHECKPOINT}")) and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert list(runs.glob(f"*/{CHECKPOINT}"))
        while time.monotonic() < until and group_lives(process.pid):
            time.sleep(0.2)
        assert not group_lives(process.pid)
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        rows = list(csv.DictReader((tmp_path / "sweeps" / "grid" / "table.csv").open()))
        whole = carry_out(shared(rows_of(read_grid(tmp_path / "grid.yaml"))[0].runs), tmp_path / "whole", jobs=1)
        again = [read_result(tmp_path / "whole", run).metrics.ece for run in whole.made]
        assert float(rows[0]["ECE"]) == pytest.approx(100 * statistics.mean(again), rel=1e-12)


def children_of(parent):
    """Worker processes, not the helper that multiprocessing keeps beside them."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes().decode(errors="replace")
            if int((path / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent and "spawn_main" in words:
                yield int(path.name)


def group_lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
