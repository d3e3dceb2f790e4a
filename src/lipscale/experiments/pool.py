"""Many runs at a time, a process each: what is done is skipped, a broken-off run goes on, a damaged one is redone."""

import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import torch

from lipscale import run as runs
from lipscale.config import Settings, replace
from lipscale.errors import DivergedError, StoppedError, UnsoundError, UserError
from lipscale.experiments.plan import Planned, describe
from lipscale.experiments.results import Result, read_result
from lipscale.folder_lock import locked
from lipscale.robustness import Attack
from lipscale.run_folder import MODEL, SETTINGS
from lipscale.training.checkpoint import load_tensors


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
    """The run's result, if metrics, predictions and a readable network are there."""
    try:
        load_tensors(folder / run.name / MODEL)
    except UserError:
        return None
    return read_result(folder, run)


def carry_out(
    plan: Sequence[Planned],
    folder: Path,
    *,
    jobs: int,
    data_dir: Path | None = None,
    on_end: Callable[[Planned, str], None] = lambda run, how: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Make every run of the plan below the folder, `jobs` at a time; a failed run does not keep the others from theirs.

    `on_end` hears of each run as it ends: "" where all is well, else why not.
    """
    outcome = Outcome()
    done = {run.digest for run in plan if finished(folder, run)}
    outcome.skipped = [run for run in plan if run.digest in done]
    waiting = [run for run in plan if run.digest not in done]
    if not waiting:
        return outcome
    folder.mkdir(parents=True, exist_ok=True)
    context = get_context("spawn")  # a fork would inherit torch's threads in an unknown state
    stop = context.Event()
    threads = max(1, _cores() // jobs)
    broken: set[str] = set()
    running: dict[Future[str], Planned] = {}
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_begin, initargs=(stop, os.getpid(), threads)
    ) as pool:
        while waiting or running:
            if should_stop() and not stop.is_set():
                stop.set()  # those that run save and end
                outcome.stopped = True
                waiting.clear()
            for run in [run for run in waiting if run.follows is not None and run.follows.digest in broken]:
                waiting.remove(run)
                broken.add(run.digest)
                outcome.failed.append((run, "the run that it follows has failed"))
            ready = [run for run in waiting if run.follows is None or run.follows.digest in done]
            for run in ready[: jobs - len(running)]:
                waiting.remove(run)
                running[pool.submit(_make_in_process, run, folder, data_dir)] = run
            ended, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in ended:
                run = running.pop(future)
                try:
                    how = future.result()
                except BrokenProcessPool:
                    raise UserError(
                        "a training process was killed, perhaps for want of memory: run the same command again, with a "
                        "smaller --jobs"
                    ) from None
                if how == "stopped":
                    outcome.stopped = True
                    continue
                (broken if how else done).add(run.digest)
                if how:
                    outcome.failed.append((run, how))
                else:
                    outcome.made.append(run)
                on_end(run, how)
    return outcome


def default_jobs(plan: Sequence[Planned]) -> int:
    """One run a core; one at all where they share a GPU."""
    on_gpu = torch.cuda.is_available() and any(run.settings.device in ("auto", "cuda") for run in plan)
    return 1 if on_gpu else _cores()


def make(run: Planned, folder: Path, *, data_dir: Path | None = None, should_stop: Callable[[], bool]) -> None:
    """Train a planned run, or go on with it, then attack it as planned."""
    place = folder / run.name
    if trained(folder, run) is None:
        if place.exists():
            with locked(place):  # what another process works on is no wreck
                pass
        if (place / SETTINGS).exists():
            with suppress(UserError):  # damaged: not trusted, done again
                runs.resume(place, should_stop=should_stop)
        if trained(folder, run) is None:
            shutil.rmtree(place, ignore_errors=True)
            runs.train(replace(_taken_over(run, folder), out=place, data_dir=data_dir), should_stop=should_stop)
    if run.attack is not None:

        def heed(what: str, done: int, total: int) -> None:
            if should_stop():  # what is finished of the attack is kept
                raise StoppedError("stopped")

        runs.attack_run(
            runs.load(place, device=run.settings.device),
            Attack(run.attack.name),
            samples=run.attack.samples,
            epsilons=(run.attack.epsilon,),
            data_dir=data_dir,
            on_progress=heed,
        )


def _taken_over(run: Planned, folder: Path) -> Settings:
    """The settings, with what they take from the run that they follow."""
    if run.follows is None:
        return run.settings
    source = read_result(folder, run.follows)
    if source is None:
        raise UserError(f"{describe(run.settings)} follows {describe(run.follows.settings)}, which is not finished")
    if run.takes == "epochs":
        return replace(run.settings, epochs=source.epochs)
    return replace(run.settings, lipschitz=1 / float(source.metrics["temperature"]))


# of each process
_should_stop: Callable[[], bool] = lambda: False  # noqa: E731
_working = threading.Lock()


def _begin(stop: Event, parent: int, threads: int) -> None:
    """In each process: few threads, no word, and an ear for the parent's wish and for its death."""
    global _should_stop
    torch.set_num_threads(threads)
    logging.getLogger("lipscale").setLevel(logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches all processes; the parent decides
    _should_stop = lambda: stop.is_set() or os.getppid() != parent  # noqa: E731
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A parent that is killed can tell nobody: once it is gone, save and go, too."""
    while os.getppid() == parent:
        time.sleep(1)
    with _working:
        os._exit(1)


def _make_in_process(run: Planned, folder: Path, data_dir: Path | None) -> str:
    """How it ended: "" is well. Errors become words, which always survive the way to the parent."""
    try:
        with _working:
            make(run, folder, data_dir=data_dir, should_stop=_should_stop)
    except StoppedError:
        return "stopped"
    except (UserError, DivergedError, UnsoundError, OSError) as error:
        return str(error) or type(error).__name__
    return ""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
