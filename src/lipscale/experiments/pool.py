"""Carry out a plan: an executor places the runs, here or elsewhere; a run whose worker is lost goes on by itself."""

import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.synchronize import Event
from pathlib import Path

import torch

from lipscale.experiments.leases import Submit, elsewhere
from lipscale.experiments.making import attempt, finished
from lipscale.experiments.plan import Planned

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
RETRIES = 3  # of a run whose worker is lost


@dataclass
class Outcome:
    """What became of a plan."""

    made: list[Planned] = field(default_factory=list)
    skipped: list[Planned] = field(default_factory=list)  # finished before
    failed: list[tuple[Planned, str]] = field(default_factory=list)  # and why
    stopped: bool = False


def default_jobs(plan: Sequence[Planned]) -> int:
    """One run a core; one at all where they share a GPU."""
    on_gpu = torch.cuda.is_available() and any(run.settings.device in ("auto", "cuda") for run in plan)
    return 1 if on_gpu else CORES


def carry_out(
    plan: Sequence[Planned],
    folder: Path,
    *,
    jobs: int,
    cores: int | None = None,
    executor: Executor | None = None,
    done: Collection[str] | None = None,
    data_dir: Path | None = None,
    on_end: Callable[[Planned, str], None] = lambda run, how: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Make every run of the plan below the folder, `jobs` at a time; a failed run does not keep the others from theirs.

    The executor only has to place them, where the folder is seen; left out, they get processes of this machine. Each
    computes on `cores`. `on_end` hears of each run as it ends: "" where all is well, else why not. `done` are the
    digests of finished runs; left out, they are looked for.
    """
    done = {run.digest for run in plan if finished(folder, run)} if done is None else done
    outcome = Outcome(skipped=[run for run in plan if run.digest in done])
    left = {run.digest: run for run in plan if run.digest not in done}
    losses: Counter[str] = Counter()

    def end(digest: str, how: str) -> None:
        run = left.pop(digest)
        (outcome.failed.append((run, how)) if how else outcome.made.append(run))
        on_end(run, how)

    def lose(digest: str) -> None:
        losses[digest] += 1  # it is free again, and goes on
        if losses[digest] > RETRIES:
            end(digest, f"its worker was lost {losses[digest]} times, perhaps for want of memory")

    while left and not outcome.stopped:
        with _workers(executor, folder, data_dir, jobs=jobs, cores=cores, should_stop=should_stop) as (submit, stop):
            running: dict[Future[str], str] = {}
            try:
                while left and not should_stop():
                    free = [run for digest, run in left.items() if digest not in running.values()]
                    ready = [run for run in free if run.follows is None or run.follows.digest not in left]
                    with deaf_to_ctrl_c():
                        for run in ready[: jobs - len(running)]:
                            running[submit(run)] = run.digest
                    for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                        digest = running.pop(future)
                        how = _ended(future)
                        end(digest, how) if how is not None else lose(digest)
                outcome.stopped = bool(left)
                stop()  # those that run save and end
                wait(running)
            except BrokenExecutor:  # the system has killed a process: they go on, with more room for each
                if executor is not None:  # not ours to make anew
                    raise
                for digest in running.values() if jobs == 1 else ():  # of several nobody knows which one it was
                    lose(digest)
                jobs = max(1, jobs - 1)
    return outcome


def _ended(future: Future[str]) -> str | None:
    """How a run ended; none where its engine has lost it: a run that fails by itself says so in words."""
    try:
        return future.result()
    except BrokenExecutor:
        raise
    except Exception:
        return None


@contextmanager
def _workers(
    executor: Executor | None,
    folder: Path,
    data_dir: Path | None,
    *,
    jobs: int,
    cores: int | None,
    should_stop: Callable[[], bool],
) -> Iterator[tuple[Submit, Callable[[], None]]]:
    """How to place a run, and how to ask all that run to save and end."""
    if executor is not None:
        with elsewhere(executor, folder, data_dir, cores=cores or 1, should_stop=should_stop) as found:
            yield found
        return
    with _processes(jobs, cores or max(1, CORES // jobs)) as (pool, stop):
        yield (lambda run: pool.submit(_attempt, run, folder, data_dir)), stop.set


@contextmanager
def _processes(jobs: int, threads: int) -> Iterator[tuple[Executor, Event]]:
    """A pool, and the event that asks its runs to save and end; whatever goes wrong here, no process stays behind."""
    context = get_context("spawn")  # a fork would inherit torch's threads in an unknown state
    stop = context.Event()
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(stop, threads))
    try:
        yield pool, stop
        pool.shutdown()
    except BaseException:  # a second Ctrl-C, for one: at once, every epoch is saved already
        for process in list(pool._processes.values()):
            process.terminate()
        raise


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
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
    return attempt(run, folder, data_dir, _should_stop)
