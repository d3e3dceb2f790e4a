"""What a person sees while attacks and sweeps run: a bar in a terminal, plain lines elsewhere."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from lipscale.training.progress import Display


class AttackProgress(Display):
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


class PlanProgress(Display):
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
