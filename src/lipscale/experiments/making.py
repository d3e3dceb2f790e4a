"""Make one planned run: what is done is skipped, what was broken off goes on, what is damaged is made again."""

import math
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

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


def attempt(run: Planned, folder: Path, data_dir: Path | None, should_stop: Callable[[], bool], **how: Any) -> str:
    """Make a run, and say how it ended: "" is well. Errors become text, which can always be sent to the parent."""
    try:
        make(run, folder, data_dir=data_dir, should_stop=should_stop, **how)
    except (UserError, DivergedError, UnsoundError) as error:
        return str(error)
    except Exception as error:  # whatever it is, the other runs are not to blame
        return f"{type(error).__name__}: {error}"
    return ""


def make(
    run: Planned,
    folder: Path,
    *,
    data_dir: Path | None = None,
    should_stop: Callable[[], bool],
    wait: float = 0.0,
) -> None:
    """Train a planned run, or go on with it, then attack it as planned; nobody else may work on it meanwhile.

    `wait` is how long to wait for somebody who does.
    """
    place = folder / run.name
    data_dir = data_dir or run.settings.data_dir
    lock = folder / LOCKS / run.name  # beside the run's folder, which may have to make way
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()

    def stop_if_asked(*progress: object) -> None:
        if should_stop():  # what is finished of the attack is kept
            raise StoppedError("stopped")

    with locked(lock, wait=wait):
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
