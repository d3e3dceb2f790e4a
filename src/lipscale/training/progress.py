"""What a person sees while a network trains: a bar in a terminal, plain lines elsewhere."""

import logging
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn

from lipscale.settings import TrainingSettings
from lipscale.training.epoch import Epoch
from lipscale.training.plan import Plan


class Display:
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


class TrainingProgress(Display):
    """Shows epoch, L, T*, loss, accuracy and the time that is left at most (Phase I may stop before)."""

    def __init__(self, plan: Plan, settings: TrainingSettings, *, console: Console | None = None) -> None:
        super().__init__(console)
        self.phase1 = plan.phase1_epochs
        self.total = self.phase1 + (0 if settings.phase1_only else plan.phase2_epochs)
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
