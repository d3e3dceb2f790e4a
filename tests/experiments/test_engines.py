"""Many runs on Dask, Ray and submitit: real clusters of this machine, whose workers are killed for real."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from conftest import lipscale
from experiment_makers import TINY, tiny
from lipscale.cli import app
from lipscale.errors import UserError
from lipscale.experiments.engines import engine_of
from lipscale.experiments.leases import Lease
from lipscale.experiments.making import LOCKS, make
from lipscale.experiments.pool import carry_out
from lipscale.experiments.results import read_result
from lipscale.runs.folder import CHECKPOINT, METRICS

MODULES = {"dask": "distributed", "ray": "ray", "slurm": "submitit"}
ADDRESSES = {"slurm": "local"}  # submitit's own executor without Slurm
MARK = "LIPSCALE_TEST_ENGINE"  # whatever process inherits it was started by the test


def installed(name):
    if importlib.util.find_spec(MODULES[name]) is None:
        pytest.skip(f"{MODULES[name]} is not installed: pip install 'lipscale[cluster]'")
    return name


def metrics_of(folder, plan):
    """All of them but the time that it took."""
    return [replace(read_result(folder, run).metrics, seconds=0.0) for run in plan]


def made_here(plan, folder):
    """What this very process makes of a plan."""
    for run in plan:
        make(run, folder, should_stop=lambda: False)
    return metrics_of(folder, plan)


def workers(folder):
    """The processes, other than this one, that hold a lock in the folder: those that work on a run."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            held = [os.readlink(file) for file in (path / "fd").iterdir()]
        except OSError:
            continue
        if int(path.name) != os.getpid() and any(str(folder / LOCKS) in name for name in held):
            yield int(path.name)


@pytest.fixture
def nothing_stays(monkeypatch, tmp_path):
    """After the test no process is left that it started, but for the helper that multiprocessing keeps."""
    resource_tracker.ensure_running()  # unmarked
    monkeypatch.setenv(MARK, str(tmp_path))
    yield
    until = time.monotonic() + 30
    while (left := marked(str(tmp_path))) and time.monotonic() < until:
        time.sleep(0.2)
    assert left == []


def marked(value):
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={value}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.fixture(scope="module")
def scheduler():
    """A Dask cluster of one worker, for all that need no other: it takes a while to start."""
    installed("dask")
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster:
        yield cluster.scheduler_address


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slurm", "ray"])
def test_an_engine_is_an_executor(tmp_path, name, nothing_stays):
    with engine_of(installed(name), ADDRESSES.get(name), jobs=1, folder=tmp_path / "engine") as engine:
        assert engine.executor.submit(divmod, 47, 10).result(60) == (4, 7)
        assert isinstance(engine.executor.submit(divmod, 47, 0).exception(60), Exception)


@pytest.mark.slow
def test_an_engine_makes_the_runs_that_this_process_makes_bit_for_bit(tmp_path, scheduler):
    plan = [tiny(epochs=4, seed=seed) for seed in range(2)]
    with engine_of("dask", scheduler, folder=tmp_path / "engine") as engine:
        outcome = carry_out(plan, tmp_path / "runs", jobs=engine.jobs, executor=engine.executor)
    assert outcome.failed == []
    assert metrics_of(tmp_path / "runs", plan) == made_here(plan, tmp_path / "here")
    assert not list((tmp_path / "runs" / LOCKS).glob("plan-*"))


@pytest.fixture(scope="module")
def twelve(tmp_path_factory):
    """A sweep, and what processes of this machine make of it undisturbed."""
    folder, plan = tmp_path_factory.mktemp("twelve"), [tiny(epochs=40, seed=seed) for seed in range(12)]
    carry_out(plan, folder, jobs=2, cores=1)
    return plan, metrics_of(folder, plan)


@pytest.mark.long
@pytest.mark.parametrize("name", ["local", "dask", "slurm", "ray"])
def test_workers_that_are_killed_cost_nothing_but_time(tmp_path, twelve, name, nothing_stays):
    (plan, expected), folder = twelve, (tmp_path / "runs").resolve()
    killed: list[int] = []
    since = [0.0]

    def kill():
        """Twice, each time in a run that has saved an epoch."""
        saved = [path for path in folder.glob(f"*/{CHECKPOINT}") if path.stat().st_mtime > since[0]]
        begun = [path for path in saved if not (path.parent / METRICS).exists()]
        if len(killed) < 2 and begun and (victims := [pid for pid in workers(folder) if pid not in killed]):
            since[0] = time.time() + 1
            killed.append(victims[0])
            os.kill(victims[0], signal.SIGKILL)
        return False

    engine_name = name if name == "local" else installed(name)
    with engine_of(engine_name, ADDRESSES.get(name), jobs=2, folder=tmp_path / "engine") as engine:
        outcome = carry_out(plan, folder, jobs=2, cores=1, executor=engine.executor, should_stop=kill)
    assert len(killed) == 2
    assert outcome.failed == []
    assert metrics_of(folder, plan) == expected


@pytest.mark.long
def test_the_runs_of_a_ray_node_that_dies_go_on_on_another(tmp_path, nothing_stays):
    installed("ray")
    from ray.cluster_utils import Cluster

    plan, folder = [tiny(epochs=150, seed=seed) for seed in range(2)], tmp_path / "runs"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1)]

        def kill():
            if nodes and len(list(folder.glob(f"*/{CHECKPOINT}"))) == 2:
                cluster.remove_node(nodes.pop(), allow_graceful=False)
            return False

        with engine_of("ray", cluster.address, folder=tmp_path) as engine:
            assert engine.jobs == 2
            outcome = carry_out(plan, folder, jobs=2, executor=engine.executor, should_stop=kill)
    finally:
        cluster.shutdown()
    assert not nodes
    assert outcome.failed == []
    assert metrics_of(folder, plan) == made_here(plan, tmp_path / "here")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dask", pytest.param("slurm", marks=pytest.mark.long)])
def test_asked_to_stop_the_workers_save_and_end(tmp_path, name, scheduler):
    plan, folder = [tiny(epochs=3000)], tmp_path / "runs"
    address = {"dask": scheduler, "slurm": "local"}[installed(name)]
    with engine_of(name, address, jobs=1, folder=tmp_path / "engine") as engine:
        stop = lambda: bool(list(folder.glob(f"*/{CHECKPOINT}")))  # noqa: E731
        outcome = carry_out(plan, folder, jobs=1, executor=engine.executor, should_stop=stop)
    assert outcome.stopped
    assert outcome.made == outcome.failed == []
    assert list(workers(folder.resolve())) == []


def test_whoever_was_asked_last_has_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("lipscale.experiments.leases.LOOK", -1.0)
    (tmp_path / "plan").touch()
    first = Lease(tmp_path / "plan", tmp_path / "owner")
    assert not first()
    second = Lease(tmp_path / "plan", tmp_path / "owner")
    assert (first(), second()) == (True, False)
    (tmp_path / "plan").unlink()
    assert second()


def test_what_is_wrong_with_an_engine_is_said_in_one_line(tmp_path, monkeypatch):
    def complaint(*engine):
        with pytest.raises(UserError) as caught, engine_of(*engine, folder=tmp_path):
            pass
        return str(caught.value)

    assert complaint("spark") == "unknown engine 'spark'; known: local, dask, ray, slurm"
    assert "has no address" in complaint("local", "tcp://here")
    monkeypatch.setattr("lipscale.experiments.engines.PATIENCE", 1)
    assert "no Dask scheduler answers at 'tcp://127.0.0.1:1'" in complaint(installed("dask"), "tcp://127.0.0.1:1")
    assert "no Ray cluster answers at '127.0.0.1:1'" in complaint(installed("ray"), "127.0.0.1:1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no sbatch" in complaint(installed("slurm"))
    for name, module in MODULES.items():
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
        assert "pip install 'lipscale[cluster]'" in complaint(name)


@pytest.mark.slow
def test_a_folder_that_workers_cannot_see_is_refused_before_any_run(tmp_path):
    """The worker lives in a name space of its own, where another folder, an empty one, hides the real one."""
    installed("dask")
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no name spaces")
    from distributed import Client, LocalCluster

    folder = tmp_path / "out"
    folder.mkdir()
    with LocalCluster(n_workers=0, dashboard_address=":0") as cluster, Client(cluster) as client:
        address = cluster.scheduler_address
        command = f"{sys.executable} -m distributed.cli.dask_worker {address} --nthreads 1 --no-nanny --no-dashboard"
        worker = subprocess.Popen(["unshare", "-rm", "sh", "-c", f"mount -t tmpfs none {folder} && exec {command}"])
        try:
            client.wait_for_workers(1, timeout=120)
            with engine_of("dask", address, folder=tmp_path) as engine, pytest.raises(UserError) as caught:
                carry_out([tiny()], folder, jobs=engine.jobs, executor=engine.executor)
        finally:
            worker.kill()
            worker.wait()
    assert "cannot be seen on" in str(caught.value)
    assert "storage that all share" in str(caught.value)
    assert [path.name for path in folder.iterdir()] == [LOCKS]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dask", pytest.param("slurm", marks=pytest.mark.long)])
def test_the_command_line_sweeps_on_an_engine(tmp_path, name, scheduler):
    address = {"dask": scheduler, "slurm": "local"}[installed(name)]
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({"settings": TINY}))
    done = lipscale("sweep", "grid.yaml", "--engine", name, "--address", address, "--jobs", 1, cwd=tmp_path)
    assert (tmp_path / "sweeps" / "grid" / "table.csv").exists()
    assert "1 of 1" in done.stderr
    wrong = lipscale("sweep", "grid.yaml", "--engine", "spark", cwd=tmp_path, check=False)
    assert (wrong.returncode, wrong.stderr) == (2, "lipscale: unknown engine 'spark'; known: local, dask, ray, slurm\n")


def test_a_list_of_runs_asks_no_cluster_and_knows_nothing_of_its_room(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({"settings": TINY}))
    asked = ["sweep", "grid.yaml", "--dry-run", "--engine", "ray", "--address", "127.0.0.1:1"]
    for more, room in (([], "as many at a time as ray has room for"), (["--jobs", "3"], "3 at a time")):
        assert f"1 runs, 1 to do, {room}." in CliRunner().invoke(app, [*asked, *more], catch_exceptions=False).output


@pytest.mark.long
def test_a_ctrl_c_reaches_all_processes_and_the_runs_are_saved(tmp_path):
    """A terminal sends it to the whole group, workers included, which must not take it for theirs."""
    installed("dask")
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({"settings": {**TINY, "epochs": 3000}}))
    command = [
        sys.executable,
        "-m",
        "lipscale",
        "sweep",
        "grid.yaml",
        "--engine",
        "dask",
        "--jobs",
        "1",
        "--out",
        "out",
    ]
    sweep = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until = time.monotonic() + 240
    while not list(tmp_path.glob(f"out/runs/*/{CHECKPOINT}")) and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(sweep.pid, signal.SIGINT)
    _, told = sweep.communicate(timeout=120)
    assert sweep.returncode == 130
    assert told.splitlines()[-1] == "Stopped. What is finished is kept: the same command goes on."
    until = time.monotonic() + 20
    while group_lives(sweep.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not group_lives(sweep.pid)


def group_lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
