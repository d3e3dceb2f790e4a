"""Where runs are made: on this machine, or by Dask, Ray or Slurm, each as an Executor that only has to place them."""

import importlib
import logging
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lipscale.errors import UserError
from lipscale.experiments.pool import CORES, deaf_to_ctrl_c

EngineName = Literal["local", "dask", "ray", "slurm"]
PATIENCE = 20  # seconds to reach a scheduler
MOST_MINUTES = 24 * 60  # of a Slurm job; what is not finished then is submitted again, and goes on
HERE = "local"  # the address that runs Slurm's jobs on this machine, to try it out


class Engine(NamedTuple):
    """An executor, and how many runs it can make at a time."""

    executor: Executor | None  # none: processes of this machine
    jobs: int


@contextmanager
def engine_of(
    name: str, address: str | None = None, *, jobs: int | None = None, cores: int = 1, folder: Path
) -> Iterator[Engine]:
    """The engine by name, up for as long as it is used; `folder` is for what it writes itself."""
    if name == "local":
        if address is not None:
            raise UserError(f"the engine local is this machine and has no address, got {address!r}")
        yield Engine(None, jobs or CORES)
        return
    if name not in ENGINES:
        raise UserError(f"unknown engine {name!r}; known: local, {', '.join(ENGINES)}")
    with ExitStack() as stack:
        resource_tracker.ensure_running()  # multiprocessing's helper: as it starts, it opens our ears again
        with deaf_to_ctrl_c():  # whatever the engine starts
            engine = stack.enter_context(ENGINES[name](address, jobs or max(1, CORES // cores), cores, folder))
        yield engine if jobs is None else engine._replace(jobs=jobs)


@contextmanager
def _dask(address: str | None, jobs: int, cores: int, folder: Path) -> Iterator[Engine]:
    """The workers of a scheduler, or processes of a cluster of our own; a killed worker's run goes to another."""
    distributed = _installed("distributed")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # a killed worker is ours to speak of
    own = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    try:
        where = {"address": address, "timeout": PATIENCE} if address else own
        client = distributed.Client(**where)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"no Dask scheduler answers at {address!r}: {_first_line(error)}") from None
    with client:
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        if not workers:
            raise UserError(f"the Dask scheduler at {address} has no worker: start some with `dask worker {address}`")
        yield Engine(client.get_executor(pure=False), workers)


@contextmanager
def _ray(address: str | None, jobs: int, cores: int, folder: Path) -> Iterator[Engine]:
    """A Ray cluster by its address, or one of our own; with GPUs each run gets one."""
    ray = _installed("ray")
    os.environ.setdefault("RAY_worker_niceness", "0")  # of a cluster of our own: nobody else's work comes first
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    own = {"num_cpus": jobs * cores, "include_dashboard": False, "address": "local"}
    try:
        _knock(address or "")
        ray.init(**how, **({"address": address} if address else own))
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"no Ray cluster answers at {address!r}: {_first_line(error)}") from None
    try:
        there = ray.cluster_resources()
        needs = {"num_cpus": cores, "num_gpus": 1 if there.get("GPU") else 0}
        places = int(there.get("GPU") or there.get("CPU", 0) // cores)
        if places == 0:
            raise UserError(f"no machine of the Ray cluster has {cores} cores for a run")
        yield Engine(_RayExecutor(ray, needs), places)
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """See that somebody listens at HOST:PORT: Ray itself would try for minutes, and fill the screen."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), PATIENCE).close()


class _RayExecutor(Executor):
    """Ray's tasks as futures; Ray itself moves the tasks of a dead worker or machine to another."""

    def __init__(self, ray: Any, needs: dict[str, Any]) -> None:
        self.task = ray.remote(_call).options(max_retries=3, **needs)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Place a call somewhere in the cluster."""
        future: Future[Any] = self.task.remote(fn, *args, **kwargs).future()
        return future


def _call(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)  # a task must be a function, and not any callable is one


@contextmanager
def _slurm(address: str | None, jobs: int, cores: int, folder: Path) -> Iterator[Engine]:
    """A Slurm job for each run, by submitit; sbatch's own variables (SBATCH_PARTITION, ...) say what else it needs."""
    submitit = _installed("submitit")
    if address not in (None, HERE):
        raise UserError(f"Slurm has no address but {HERE!r}, for trying it out on this machine; got {address!r}")
    if address is None and shutil.which("sbatch") is None:
        raise UserError(
            f"Slurm is not here (no sbatch): start it where jobs are submitted, or with the address {HERE!r}"
        )
    queue = submitit.AutoExecutor(folder=folder / "%j", cluster=HERE if address else "slurm")
    queue.update_parameters(name="lipscale", timeout_min=MOST_MINUTES, cpus_per_task=cores)
    executor = _SlurmExecutor(queue, jobs if address else 1000)
    try:
        yield Engine(executor, executor._max_workers)
    finally:
        for job in executor.submitted:
            if not job.done():
                job.cancel()
        executor.shutdown(wait=False, cancel_futures=True)


class _SlurmExecutor(ThreadPoolExecutor):
    """submitit's jobs as futures: a thread waits for each."""

    def __init__(self, queue: Any, jobs: int) -> None:
        super().__init__(jobs)
        self.queue = queue
        self.submitted: list[Any] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a job, and wait for its result."""
        job = self.queue.submit(fn, *args, **kwargs)
        self.submitted.append(job)
        return super().submit(job.result)


ENGINES: dict[str, Any] = {"dask": _dask, "ray": _ray, "slurm": _slurm}


def _installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"this engine is an extra: pip install 'lipscale[cluster]' ({error})") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
