"""What a logger is told of a training; whatever goes wrong in one is a warning, never the training's end."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from lipscale import _processes as processes
from lipscale.errors import UserError
from lipscale.training.epoch import Epoch

log = logging.getLogger("lipscale")


class Logger(Protocol):
    """Whoever wants to be told of a training; subclass it and write the methods that matter to you."""

    # each returns in so many words: mypy takes an empty body for one that has to be written

    def start(self, folder: Path | None, settings: Mapping[str, Any], past: Sequence[Epoch]) -> None:
        """A training begins or, with the epochs that are past, goes on; the folder is the run's, if it has one."""
        return

    def epoch(self, number: int, epoch: Epoch) -> None:
        """An epoch is done and saved; its number counts over both phases, from 1."""
        return

    def end(self, results: Mapping[str, Any]) -> None:
        """All is done: the metrics of a run, or of `fit` the constant and the times."""
        return

    def failed(self, error: BaseException) -> None:
        """It has ended before its time, asked to (StoppedError) or not; it may go on one day."""
        return


class Audience:
    """The loggers of one training."""

    def __init__(self, loggers: Sequence[Logger], folder: Path | None, settings: Any, past: Sequence[Epoch]) -> None:
        self.loggers, self.warned, self.epochs = list(loggers), list[Logger](), len(past)
        self._tell("start", folder, settings, past)
        self.loggers = [logger for logger in self.loggers if logger not in self.warned]  # one that could not start

    def epoch(self, epoch: Epoch) -> None:
        """Pass an epoch on, with its number."""
        self.epochs += 1
        self._tell("epoch", self.epochs, epoch)

    def end(self, results: Mapping[str, Any]) -> None:
        """Pass on that all is done."""
        self._tell("end", results)

    def failed(self, error: BaseException) -> None:
        """Pass on that it ended before its time."""
        self._tell("failed", error)

    def _tell(self, event: str, *values: Any) -> None:
        for logger in self.loggers:
            try:
                getattr(logger, event)(*values)
            except Exception as error:
                if logger not in self.warned:  # once: it may fail in every epoch
                    name, reason = type(logger).__name__, " ".join(f"{type(error).__name__}: {error}".split())
                    log.warning("the logger %s failed (%s); the training goes on", name, reason)
                    self.warned.append(logger)


@contextmanager
def watched(
    loggers: Sequence[Logger], folder: Path | None, settings: Mapping[str, Any], past: Sequence[Epoch]
) -> Iterator[Audience]:
    """Within, loggers are told what the audience is told; of processes that train together the first one's are."""
    audience = Audience(loggers if processes.is_first() else (), folder, settings, past)
    try:
        yield audience
    except BaseException as error:
        audience.failed(error)
        raise


class Adapter(Logger, ABC):
    """What the adapters share: a package that may be missing, a folder, and a log that may have some epochs already."""

    package: str

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = folder
        if find_spec(self.package) is None:
            extra = f"pip install 'lipscale[{self.package}]'"
            raise UserError(f"the logger {self.package} needs the package {self.package}: {extra}")

    def start(self, folder: Path | None, settings: Mapping[str, Any], past: Sequence[Epoch]) -> None:
        """Open the log, in the folder that was given or the run's, and add the past epochs that it does not have."""
        chosen = folder if self.folder is None else Path(self.folder)
        if chosen is None:
            raise UserError(f"there is no run folder to log to: write {type(self).__name__}('FOLDER')")
        written = self.open(chosen.resolve(), settings)
        self.last = len(past)
        for number, epoch in enumerate(past, 1):
            if number > written:
                self.epoch(number, epoch)

    @abstractmethod
    def open(self, folder: Path, settings: Mapping[str, Any]) -> int:
        """Begin a log, or go on with the folder's own; the epochs that it has."""

    def epoch(self, number: int, epoch: Epoch) -> None:
        """Add the numbers of an epoch."""
        self.last = number
        self.add(numbers(epoch))

    @abstractmethod
    def add(self, values: Mapping[str, float]) -> None:
        """Add numbers to the last epoch."""


def numbers(values: Epoch | Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers among the values, those of a mapping as NAME/KEY; what is unknown or a list is left out."""
    found: dict[str, float] = {}
    for name, value in (asdict(values) if isinstance(values, Epoch) else values).items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            found[f"{prefix}{name}"] = float(value)
    return found
