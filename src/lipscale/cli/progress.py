"""What a person sees while attacks and sweeps run: a bar in a terminal, plain lines elsewhere."""

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from lipscale.training.progress import Display


class Counting(Display):
    """A bar for each thing that is counted, in a terminal; where there are fewer than `least`, none."""

    def __init__(self, *, least: int = 0) -> None:
        super().__init__(None)
        self.least = least
        self.tasks: dict[str, TaskID] = {}
        if self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=self.console)

    def count(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` are finished."""
        if self.bar and total >= self.least:
            if what not in self.tasks:
                self.tasks[what] = self.bar.add_task(what)
            self.bar.update(self.tasks[what], completed=done, total=total)


class AttackProgress(Counting):
    """Shows how far an attack is: a bar in a terminal, a line for each finished part elsewhere."""

    last = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report that `done` of `total` of a part are finished."""
        self.count(what, done, total)
        line = f"{what}: {'done' if done == total else f'{done} of {total}'}"
        tenth = f"{what} {10 * done // total}"
        if self.bar is None and tenth != self.last:
            self.console.print(line, highlight=False)
        self.last = tenth


class PlanProgress(Counting):
    """Shows how many runs of a plan are finished and what the last ones gave: a bar in a terminal, lines elsewhere."""

    def __init__(self, total: int, *, done: int) -> None:
        super().__init__()
        self.total, self.done = total, done
        self.count("runs", done, total)

    def __call__(self, what: str) -> None:
        """Report that one more run has ended."""
        self.done += 1
        self.count("runs", self.done, self.total)
        self.console.print(f"{self.done} of {self.total}  {what}", highlight=False, soft_wrap=True, markup=False)
