"""Carry out a plan: an executor places the runs; what is done is skipped, what was broken off goes on by itself."""

import logging
import math
import os
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.synchronize import Event
from pathlib import Path

import torch

from lipscale import runs
from lipscale._files import load_tensors
from lipscale.certificates.robustness import Attack
from lipscale.errors import DivergedError, StoppedError, UnsoundError, UnusableError, UserError
from lipscale.experiments.plan import Planned, describe
from lipscale.experiments.results import Result, read_result
from lipscale.runs.folder import METRICS, MODEL, SETTINGS
from lipscale.runs.lock import locked
from lipscale.settings import Settings, replace

LOCKS = ".locks"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class Outcome:
    """What became of a plan."""

    made: list[Planned] = field(default_factory=list)
    skipped: list[Planned] = field(default_factory=list)  # finished before
    failed: list[tuple[Planned, str]] = field(default_factory=list)  # and why
    stopped: bool = False


def finished(folder: Path, run: Planned) -> bool:
    """Whether all of the run is there, the planned attack included."""
    result = trained(folder, run)
    return result is not None and (run.attack is None or result.robust is not None)


def trained(folder: Path, run: Planned) -> Result | None:
    """The run's result, if its network can be read, too."""
    try:
        load_tensors(folder / run.name / MODEL)
    except UserError:
        return None
    return read_result(folder, run)


def default_jobs(plan: Sequence[Planned]) -> int:
    """One run a core; one at all where they share a GPU."""
    on_gpu = torch.cuda.is_available() and any(run.settings.device in ("auto", "cuda") for run in plan)
    return 1 if on_gpu else CORES


def carry_out(
    plan: Sequence[Planned],
    folder: Path,
    *,
    jobs: int,
    executor: Executor | None = None,
    done: Collection[str] | None = None,
    data_dir: Path | None = None,
    on_end: Callable[[Planned, str], None] = lambda run, how: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Make every run of the plan below the folder, `jobs` at a time; a failed run does not keep the others from theirs.

    The executor only has to place them; left out, they get processes of this machine. `on_end` hears of each run as it
    ends: "" where all is well, else why not. `done` are the digests of finished runs; left out, they are looked for.
    """
    done = {run.digest for run in plan if finished(folder, run)} if done is None else done
    outcome = Outcome(skipped=[run for run in plan if run.digest in done])
    left = {run.digest: run for run in plan if run.digest not in done}

    def end(digest: str, how: str) -> None:
        run = left.pop(digest)
        if how:
            outcome.failed.append((run, how))
        else:
            outcome.made.append(run)
        on_end(run, how)

    while left and not outcome.stopped:
        with _processes(jobs) if executor is None else nullcontext((executor, threading.Event())) as (pool, stop):
            running: dict[Future[str], str] = {}
            try:
                while left and not should_stop():
                    free = [run for digest, run in left.items() if digest not in running.values()]
                    ready = [run for run in free if run.follows is None or run.follows.digest not in left]
                    with _deaf_to_ctrl_c():
                        for run in ready[: jobs - len(running)]:
                            running[pool.submit(_attempt, run, folder, data_dir)] = run.digest
                    for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                        how = future.result()
                        end(running.pop(future), how)
                outcome.stopped = bool(left)
                stop.set()  # those that run save and end
            except BrokenExecutor:  # the system has killed a process: they go on, with more room for each
                if executor is not None:  # not ours to make anew
                    raise
                for digest in running.values() if jobs == 1 else ():
                    end(digest, "its process was killed, perhaps for want of memory")
                jobs = max(1, jobs - 1)
    return outcome


@contextmanager
def _processes(jobs: int) -> Iterator[tuple[Executor, Event]]:
    """A pool, and the event that asks its runs to save and end; whatever goes wrong here, no process stays behind."""
    context = get_context("spawn")  # a fork would inherit torch's threads in an unknown state
    stop = context.Event()
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(stop, max(1, CORES // jobs)))
    try:
        yield pool, stop
        pool.shutdown()
    except BaseException:  # a second Ctrl-C, for one: at once, every epoch is saved already
        for process in list(pool._processes.values()):
            process.terminate()
        raise


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that start within inherit deaf ears: a Ctrl-C reaches all, even while they import, and is ours."""
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:  # one that came meanwhile is heard now
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_should_stop: Callable[[], bool] = lambda: False  # noqa: E731 (each process has its own)


def _begin(stop: Event, threads: int) -> None:
    """In each process: few threads, no log lines, and an end when the parent asks for it or is gone."""
    global _should_stop
    _should_stop = stop.is_set
    torch.set_num_threads(threads)
    logging.getLogger("lipscale").setLevel(logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches all processes; the parent decides
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:  # one that is killed can tell nobody; every epoch is saved, so just go, too
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _attempt(run: Planned, folder: Path, data_dir: Path | None) -> str:
    """How it ended: "" is well. Errors become text, which can always be sent to the parent."""
    try:
        make(run, folder, data_dir=data_dir, should_stop=_should_stop)
    except (UserError, DivergedError, UnsoundError) as error:
        return str(error)
    except Exception as error:  # whatever it is, the other runs are not to blame
        return f"{type(error).__name__}: {error}"
    return ""


def make(run: Planned, folder: Path, *, data_dir: Path | None = None, should_stop: Callable[[], bool]) -> None:
    """Train a planned run, or go on with it, then attack it as planned; nobody else may work on it meanwhile."""
    place = folder / run.name
    data_dir = data_dir or run.settings.data_dir
    lock = folder / LOCKS / run.name  # beside the run's folder, which may have to make way
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()

    def stop_if_asked(*progress: object) -> None:
        if should_stop():  # what is finished of the attack is kept
            raise StoppedError("stopped")

    with locked(lock):
        if trained(folder, run) is None and (place / SETTINGS).exists():
            # what is there is not trusted, but measured again, from the checkpoint if that is good
            (place / METRICS).unlink(missing_ok=True)
            with suppress(UnusableError):
                runs.resume(place, progress=False, should_stop=should_stop, data_dir=data_dir)
        if trained(folder, run) is None:
            if place.exists():  # it is damaged: kept for those who want to know, out of the way
                aside = place.with_name(f"{place.name}.damaged")
                shutil.rmtree(aside, ignore_errors=True)
                place.rename(aside)
            settings = replace(_taken_over(run, folder), out=place, data_dir=data_dir)
            runs.train(settings, progress=False, should_stop=should_stop)
        if run.attack is not None:
            runs.attack_run(
                runs.load(place, device=run.settings.device), Attack(run.attack.name), samples=run.attack.samples,
                epsilons=(run.attack.epsilon,), data_dir=data_dir, on_progress=stop_if_asked,
            )  # fmt: skip


def _taken_over(run: Planned, folder: Path) -> Settings:
    """The settings, with what they take from the run that they follow."""
    if run.follows is None:
        return run.settings
    source = read_result(folder, run.follows)
    if source is None:
        raise UserError("the run that it follows has failed")
    if run.takes == "epochs":
        return replace(run.settings, epochs=len(source.history))
    temperature = source.metrics.temperature
    if not 0 < temperature < math.inf:
        raise UserError(f"T* of {describe(run.follows)} is {temperature}: there is no 1 / T* to take over")
    return replace(run.settings, lipschitz=1 / temperature, epochs=source.settings.epochs)
