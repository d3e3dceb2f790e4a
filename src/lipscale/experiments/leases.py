"""Runs on the workers of an engine: they see the same folder, and each has its run until somebody else is given it."""

import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import torch

from lipscale._files import write_atomically
from lipscale._log import errors_only
from lipscale.errors import StoppedError, UserError
from lipscale.experiments.making import LOCKS, attempt
from lipscale.experiments.plan import Planned
from lipscale.runs.folder import require_shared

Submit = Callable[[Planned], Future[str]]
LOOK = 1.0  # seconds between two looks at a lease: the storage may be slow
HANDOVER = 60.0  # seconds that a run's last owner has to see that it is not his any more
_alone = threading.Lock()  # threads of one worker share torch's settings and random numbers


@contextmanager
def elsewhere(
    executor: Executor,
    folder: Path,
    data_dir: Path | None,
    *,
    cores: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Submit, Callable[[], None]]]:
    """How to place a run on an engine's workers, and how to ask all that run to save and end.

    A file says that the plan is carried out. Workers that do not see it do not share the folder; when it is gone, they
    stop.
    """
    folder = folder.resolve()
    plan = folder / LOCKS / f"plan-{secrets.token_hex(8)}"
    plan.parent.mkdir(parents=True, exist_ok=True)
    plan.touch()
    try:
        _try_out(executor, plan, should_stop)
        yield (lambda run: executor.submit(_attempt, run, folder, data_dir, plan, cores)), plan.unlink
    finally:
        plan.unlink(missing_ok=True)


def _try_out(executor: Executor, plan: Path, should_stop: Callable[[], bool]) -> None:
    """See, before any training, that a worker has this lipscale and sees the folder."""
    trial = executor.submit(_look_around, plan)
    while not wait([trial], timeout=0.5).done:
        if should_stop():
            raise StoppedError("stopped before any run was placed")
    try:
        place, found = trial.result()
    except (BrokenExecutor, UserError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the engine's workers cannot run lipscale: {type(error).__name__}: {reason}") from error
    if found != version("lipscale"):
        raise UserError(f"the worker on {place} has lipscale {found}, and here it is {version('lipscale')}")


def _look_around(plan: Path) -> tuple[str, str]:
    require_shared(plan)
    return platform.node(), version("lipscale")


def _attempt(run: Planned, folder: Path, data_dir: Path | None, plan: Path, cores: int) -> str:
    """On a worker: make a run, or go on with it."""
    with _alone:
        try:
            require_shared(plan)
        except UserError as error:
            return str(error)
        torch.set_num_threads(cores)
        with errors_only():
            return attempt(run, folder, data_dir, Lease(plan, folder / LOCKS / f"{run.name}.owner"), wait=HANDOVER)


class Lease:
    """Whether a worker must let its run go: the plan is over, or the engine took it for dead and asked another one.

    Locks are no proof: on some network storage they vanish without a word. Whoever was asked last is the owner.
    """

    def __init__(self, plan: Path, owner: Path) -> None:
        self.plan, self.owner, self.token = plan, owner, secrets.token_hex(8)
        self.ended, self.looked = False, time.monotonic()
        write_atomically(owner, self.token.encode())

    def __call__(self) -> bool:
        """Whether it is over, as of a moment ago."""
        if not self.ended and time.monotonic() - self.looked > LOOK:
            self.looked = time.monotonic()
            self.ended = not self.plan.exists() or self.owner.read_text(encoding="utf-8") != self.token
        return self.ended
