"""What a person sees while a network trains: a bar in a terminal, plain lines elsewhere."""

import logging
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from lipscale.runs.settings import Settings
from lipscale.training import Epoch
from lipscale.training.settings import planned_epochs


class _Display:
    """A bar in a terminal, and none elsewhere, for as long as the work lasts."""

    def __init__(self, console: Console | None) -> None:
        self.console = console or Console(stderr=True)
        self.bar: Progress | None = None

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()


class TrainingProgress(_Display):
    """Shows epoch, L, T*, loss, accuracy and the time that is left at most (Phase I may stop before)."""

    def __init__(self, settings: Settings, *, console: Console | None = None) -> None:
        super().__init__(console)
        self.phase1, phase2 = planned_epochs(settings)
        self.total = self.phase1 + (0 if settings.phase1_only else phase2)
        self.start, self.seen = time.perf_counter(), 0
        if self.console.is_terminal:
            # in a narrow window the numbers matter more than the bar
            bar = [BarColumn(bar_width=20)] if self.console.width >= 110 else []
            counter = TextColumn("{task.description} {task.completed}/{task.total}")
            self.bar = Progress(*bar, counter, TextColumn("{task.fields[status]}"), console=self.console)
            self.task = self.bar.add_task("Phase I", total=self.total, status="")

    def __enter__(self) -> Self:
        self._handler = RichHandler(console=self.console, show_path=False, show_time=False)
        logging.getLogger("lipscale").addHandler(self._handler)
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        logging.getLogger("lipscale").removeHandler(self._handler)

    def __call__(self, epoch: Epoch) -> None:
        """Report a finished epoch."""
        self.seen += 1
        done = epoch.epoch if epoch.phase == 1 else self.phase1 + epoch.epoch
        pace = (time.perf_counter() - self.start) / self.seen
        status = describe(epoch, remaining=pace * (self.total - done))
        if self.bar:
            name = f"Phase {'I' * epoch.phase}"
            self.bar.update(self.task, description=name, completed=done, status=status)
        else:
            self.console.print(f"phase {epoch.phase} epoch {epoch.epoch} {status}", soft_wrap=True, highlight=False)


class AttackProgress(_Display):
    """Shows how far an attack is: a bar in a terminal, a line for each finished part elsewhere."""

    def __init__(self, *, console: Console | None = None) -> None:
        super().__init__(console)
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                console=self.console,
            )  # fmt: skip
        self.tasks: dict[str, TaskID] = {}
        self.finished: set[str] = set()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report that `done` of `total` batches of a part are finished."""
        if self.bar is None:
            line = f"{what}: {'done' if done == total else f'{done} of {total} batches'}"
            if line not in self.finished:
                self.finished.add(line)
                self.console.print(line, highlight=False)
            return
        if what not in self.tasks:
            self.tasks[what] = self.bar.add_task(what, total=total)
        self.bar.update(self.tasks[what], completed=done, total=total)


def describe(epoch: Epoch, *, remaining: float) -> str:
    """One line about an epoch; the accuracy is the calibration set's, or without one the training's."""
    parts = []
    if epoch.lipschitz is not None:
        parts.append(f"L {epoch.lipschitz:.4g}")
    if epoch.temperature is not None:
        parts.append(f"T* {epoch.temperature:.4f}")
    parts.append(f"loss {epoch.loss:.4f}")
    accuracy = epoch.train_accuracy if epoch.calibration_accuracy is None else epoch.calibration_accuracy
    parts.append(f"accuracy {accuracy:.3f}")
    minutes, seconds = divmod(round(remaining), 60)
    hours, minutes = divmod(minutes, 60)
    left = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
    return "  ".join([*parts, f"<= {left} left"])


class PlanProgress(_Display):
    """Shows how many runs of a plan are finished and what the last ones gave: a bar in a terminal, lines elsewhere."""

    def __init__(self, total: int, *, done: int = 0, console: Console | None = None) -> None:
        super().__init__(console)
        self.total, self.done = total, done
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=self.console
            )
            self.task = self.bar.add_task("runs", total=total, completed=done)

    def __call__(self, what: str) -> None:
        """Report that one more run has ended."""
        self.done += 1
        if self.bar:
            self.bar.update(self.task, completed=self.done)
        self.console.print(f"{self.done} of {self.total}  {what}", highlight=False, soft_wrap=True, markup=False)
