"""Many runs on Dask, Ray and submitit: real clusters of this machine, whose workers are killed for real."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from conftest import lipscale
from experiment_makers import TINY, tiny
from lipscale.errors import UserError
from lipscale.experiments.engines import engine_of
from lipscale.experiments.leases import Lease
from lipscale.experiments.making import LOCKS
from lipscale.experiments.pool import carry_out
from lipscale.experiments.results import read_result
from lipscale.runs.folder import CHECKPOINT

MODULES = {"dask": "distributed", "ray": "ray", "slurm": "submitit"}
ADDRESSES = {"slurm": "local"}  # submitit's own executor without Slurm
ENGINES = ["dask", *(pytest.param(name, marks=pytest.mark.long) for name in ("slurm", "ray"))]


def installed(name):
    if importlib.util.find_spec(MODULES[name]) is None:
        pytest.skip(f"{MODULES[name]} is not installed: pip install 'lipscale[cluster]'")
    return name


def metrics_of(folder, plan):
    found = [read_result(folder, run) for run in plan]
    return [
        (result.metrics.ece, result.metrics.accuracy, result.constant, result.metrics.temperature) for result in found
    ]


def workers(folder):
    """The processes, other than this one, that hold a lock in the folder: those that work on a run."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            held = [os.readlink(file) for file in (path / "fd").iterdir()]
        except OSError:
            continue
        if int(path.name) != os.getpid() and any(str(folder / LOCKS) in name for name in held):
            yield int(path.name)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """What processes of this machine make of the plan."""
    folder, plan = tmp_path_factory.mktemp("local"), [tiny(epochs=4, seed=seed) for seed in range(3)]
    carry_out(plan, folder, jobs=2, cores=1)
    return plan, metrics_of(folder, plan)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_makes_the_runs_that_this_machine_makes_bit_for_bit(tmp_path, local, name):
    plan, expected = local
    with engine_of(installed(name), ADDRESSES.get(name), jobs=2, folder=tmp_path / "engine") as engine:
        outcome = carry_out(plan, tmp_path / "runs", jobs=engine.jobs, executor=engine.executor)
    assert outcome.failed == []
    assert metrics_of(tmp_path / "runs", plan) == expected
    assert not list((tmp_path / "runs" / LOCKS).glob("plan-*"))


@pytest.mark.long
@pytest.mark.parametrize("name", ["dask", "slurm", "ray"])
def test_a_worker_that_is_killed_twice_costs_nothing_but_time(tmp_path, name):
    plan, folder = [tiny(epochs=150, seed=seed) for seed in range(2)], (tmp_path / "runs").resolve()
    killed: list[int] = []
    began: list[float] = []

    def kill():
        """Each time some epochs further."""
        saved = sorted(path.stat().st_mtime for path in folder.glob(f"*/{CHECKPOINT}"))
        if len(killed) < 2 and saved and (not began or saved[0] > began[-1]) and (victims := list(workers(folder))):
            began.append(time.time() + 1)
            killed.append(victims[0])
            os.kill(victims[0], signal.SIGKILL)
        return False

    with engine_of(installed(name), ADDRESSES.get(name), jobs=2, folder=tmp_path / "engine") as engine:
        outcome = carry_out(plan, folder, jobs=engine.jobs, executor=engine.executor, should_stop=kill)
    assert len(killed) == 2
    assert outcome.failed == []
    carry_out(plan, tmp_path / "whole", jobs=2, cores=1)
    assert metrics_of(folder, plan) == metrics_of(tmp_path / "whole", plan)
    assert list(workers(folder)) == []


@pytest.mark.long
def test_the_runs_of_a_ray_node_that_dies_go_on_on_another(tmp_path):
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
    carry_out(plan, tmp_path / "whole", jobs=2, cores=1)
    assert metrics_of(folder, plan) == metrics_of(tmp_path / "whole", plan)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dask", pytest.param("slurm", marks=pytest.mark.long)])
def test_asked_to_stop_the_workers_save_and_end_and_the_same_command_goes_on(tmp_path, name):
    plan, folder = [tiny(epochs=3000)], tmp_path / "runs"
    with engine_of(installed(name), ADDRESSES.get(name), jobs=1, folder=tmp_path / "engine") as engine:
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
def test_the_command_line_sweeps_on_an_engine(tmp_path):
    installed("slurm")
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({"settings": TINY}))
    done = lipscale("sweep", "grid.yaml", "--engine", "slurm", "--address", "local", "--jobs", 1, cwd=tmp_path)
    assert (tmp_path / "sweeps" / "grid" / "table.csv").exists()
    assert "1 of 1" in done.stderr
    wrong = lipscale("sweep", "grid.yaml", "--engine", "spark", cwd=tmp_path, check=False)
    assert (wrong.returncode, wrong.stderr) == (2, "lipscale: unknown engine 'spark'; known: local, dask, ray, slurm\n")


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
