"""What a person sees while a network trains: a bar in a terminal, plain lines elsewhere."""

import logging
import time
from html import escape
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn

from lipscale.settings import TrainingSettings
from lipscale.training.epoch import Epoch
from lipscale.training.plan import Plan

WIDE = 110  # columns that hold the bar and every number


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
        self.is_narrow = self.console.width < WIDE
        self.notebook: Any = None
        if self.console.is_terminal:
            counter = TextColumn("{task.description} {task.completed}/{task.total}")
            bar = BarColumn(bar_width=10 if self.is_narrow else 20)
            self.bar = Progress(counter, bar, TextColumn("{task.fields[status]}"), console=self.console)
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
        remaining = (time.perf_counter() - self.start) / self.seen * (self.total - done)
        if self.bar:
            status = describe(epoch, remaining=remaining, brief=self.is_narrow)
            self.bar.update(self.task, description=f"Phase {'I' * epoch.phase}", completed=done, status=status)
        elif self.console.is_jupyter:
            text = f"Phase {'I' * epoch.phase} {done}/{self.total}  {describe(epoch, remaining=remaining)}"
            self.notebook = show_in_notebook(self.notebook, done, self.total, text)
        else:
            line = f"phase {epoch.phase} epoch {epoch.epoch} {describe(epoch, remaining=remaining)}"
            self.console.print(line, soft_wrap=True, highlight=False)


def show_in_notebook(handle: Any, done: int, total: int, text: str) -> Any:
    """A bar below a notebook's cell, which moves instead of printing line after line; rich would need ipywidgets."""
    from IPython.display import HTML, display

    bar = HTML(f'<progress value="{done}" max="{total}"></progress> {escape(text)}')
    if handle is None:
        return display(bar, display_id=True)
    handle.update(bar)
    return handle


def describe(epoch: Epoch, *, remaining: float, brief: bool = False) -> str:
    """One line about an epoch; the accuracy is the calibration set's, or without one that of the training."""
    minutes, seconds = divmod(round(remaining), 60)
    hours, minutes = divmod(minutes, 60)
    left = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
    set_name, share = "calibration", epoch.calibration_accuracy
    if share is None:
        set_name, share = "training", epoch.train_accuracy
    parts = {
        "L": "" if epoch.lipschitz is None else f"{epoch.lipschitz:.4g}",
        "T*": "" if epoch.temperature is None else f"{epoch.temperature:.4f}",
        "training loss": "" if brief else f"{epoch.loss:.4f}",
        f"{set_name} accuracy": f"{100 * share:.1f} %",
        "" if brief else "at most": f"{left} left",
    }
    return "  ".join(f"{name} {value}".strip() for name, value in parts.items() if value)
