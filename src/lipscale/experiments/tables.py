"""Tables as the paper prints them: mean and standard deviation over seeds, the best in bold, the second underlined."""

import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lipscale._files import write_atomically
from lipscale.experiments.plan import AttackBudget
from lipscale.experiments.profiles import CERTIFIED_AT
from lipscale.experiments.results import Result


@dataclass(frozen=True)
class Column:
    """What is printed of each run, and which value is better: in per cent, as a number, or how many runs have it."""

    title: str
    value: Callable[[Result], float | None]
    better: Literal["higher", "lower", "zero"] | None = None
    shown: Literal["percent", "number", "count"] = "percent"

    def loss(self, mean: float) -> float:
        """Smaller is better."""
        return {"higher": -mean, "lower": mean, "zero": abs(mean), None: 0.0}[self.better]

    def cell(self, runs: Sequence[Result]) -> "Cell | None":
        """The mean over these runs; none where no run has a value."""
        values = [float(v) for run in runs if (v := self.value(run)) is not None and math.isfinite(v)]
        if not values:
            return None
        if self.shown == "count":
            return Cell(statistics.mean(values), count=f"{sum(map(bool, values))} of {len(values)}")
        scaled = [100 * value if self.shown == "percent" else value for value in values]
        return Cell(statistics.mean(scaled), statistics.stdev(scaled) if len(scaled) > 1 else None)


@dataclass(frozen=True)
class Cell:
    """A mean over seeds, or `count` of them; `place` 1 is the best of its block, 2 the second."""

    mean: float
    deviation: float | None = None
    place: int = 0
    count: str = ""


@dataclass(frozen=True)
class Line:
    """A row of the table; `block` is what its places are among."""

    block: str
    name: str
    cells: tuple[Cell | None, ...]

    @property
    def title(self) -> str:
        """Block and name."""
        return f"{self.block} {self.name}".strip()


@dataclass(frozen=True)
class Table:
    """A table, ready to be printed."""

    title: str
    corner: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]

    @property
    def head(self) -> list[str]:
        """The first row."""
        return [self.corner, *(column.title for column in self.columns)]


def make_table(
    title: str, corner: str, columns: Sequence[Column], rows: Iterable[tuple[str, str, Sequence[Result]]]
) -> Table:
    """A table of rows (block, name, runs); a row without finished runs is left empty, never out."""
    lines = (Line(block, name, tuple(column.cell(runs) for column in columns)) for block, name, runs in rows)
    return Table(title, corner, tuple(columns), tuple(lines))


def ranked(table: Table, *, within_blocks: bool = False) -> Table:
    """The table with the best and the second best of each column marked, among all lines or those of a block."""
    lines = []
    for line in table.lines:
        rivals = [other.cells for other in table.lines if other.block == line.block or not within_blocks]
        lines.append(replace(line, cells=tuple(map(_placed, table.columns, line.cells, zip(*rivals, strict=True)))))
    return replace(table, lines=tuple(lines))


def _placed(column: Column, cell: Cell | None, rivals: Iterable[Cell | None]) -> Cell | None:
    """The cell with its place among the rivals; what prints alike is alike: ties share their place."""
    printed = [column.loss(round(rival.mean, 2)) for rival in rivals if rival is not None]
    if cell is None or column.better is None or len(printed) < 2:
        return cell
    place = 1 + sorted(set(printed)).index(column.loss(round(cell.mean, 2)))
    return replace(cell, place=place if place <= 2 else 0)


def markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table for GitHub and for reading as it is."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *body]) + "\n"


def as_markdown(table: Table) -> str:
    """The table in Markdown."""

    def show(cell: Cell | None) -> str:
        if cell is None or cell.count:
            return cell.count if cell else "n/a"
        text = ("{:.2f}", "**{:.2f}**", "<u>{:.2f}</u>")[cell.place].format(cell.mean)
        return text if cell.deviation is None else f"{text} ± {cell.deviation:.2f}"

    return markdown(table.head, ([line.title, *map(show, line.cells)] for line in table.lines))


def as_latex(table: Table) -> str:
    """A tabular for booktabs, in the paper's style."""

    def show(cell: Cell | None) -> str:
        if cell is None or cell.count:
            return cell.count if cell else "N/A"
        number = ("{:.2f}", r"\mathbf{{{:.2f}}}", r"\underline{{{:.2f}}}")[cell.place].format(cell.mean)
        return f"${number}$" if cell.deviation is None else rf"${number}_{{\pm {cell.deviation:.2f}}}$"

    def escaped(text: str) -> str:
        for plain, code in (("%", r"\%"), ("_", r"\_"), ("&", r"\&"), ("#", r"\#"), ("±", r"$\pm$"), ("xi", r"$\xi$")):
            text = text.replace(plain, code)
        return text

    out = [f"% {table.title}", rf"\begin{{tabular}}{{@{{}}l{'c' * len(table.columns)}@{{}}}}", r"\toprule"]
    out.append(" & ".join(map(escaped, table.head)) + r" \\")
    block = None
    for line in table.lines:
        if line.block != block:
            out.append(r"\midrule")
            block = line.block
        out.append(" & ".join([escaped(line.title), *map(show, line.cells)]) + r" \\")
    return "\n".join([*out, r"\bottomrule", r"\end{tabular}"]) + "\n"


def as_csv(table: Table) -> str:
    """Means and deviations as plain numbers, for further use."""
    titles = [part for column in table.columns for part in (column.title, f"{column.title}, deviation")]
    numbers = (
        [part for cell in line.cells for part in (cell and cell.mean, cell and cell.deviation)] for line in table.lines
    )
    named = ([line.block, line.name, *cells] for line, cells in zip(table.lines, numbers, strict=True))
    return csv_text(["block", "row", *titles], named)


def csv_text(head: Sequence[str], body: Iterable[Sequence[Any]]) -> str:
    """CSV with plain line ends; None is an empty cell."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([head, *body])
    return out.getvalue()


def write_table(table: Table, path: Path) -> list[Path]:
    """Write the table as Markdown, LaTeX and CSV, and say where."""
    forms = {".md": as_markdown, ".tex": as_latex, ".csv": as_csv}
    for suffix, form in forms.items():
        write_atomically(Path(f"{path}{suffix}"), form(table).encode())
    return [Path(f"{path}{suffix}") for suffix in forms]


# --- what the tables show of each run ---


def measured(attack: AttackBudget) -> tuple[Column, ...]:
    """What the paper's tables show of each run: accuracy, calibration, what an attack left, what is proven."""
    attacked = f"{'AA' if attack.name == 'autoattack' else 'PGD'} acc. ({attack.epsilon:g})"
    return (
        Column("Clean acc.", lambda r: r.metrics.accuracy, "higher"),
        Column("ECE", lambda r: r.metrics.ece, "lower"),
        Column("ESCE", lambda r: r.metrics.esce, "zero"),
        Column(attacked, lambda r: r.robust.robust_accuracy if r.robust else None, "higher"),
        Column("CRA (36/255)", lambda r: r.certified(CERTIFIED_AT) if r.metrics.is_certified else None, "higher"),
    )


CALIBRATED = (
    Column("Calibrated", lambda r: r.calibrated, shown="count"),
    Column("strictly", lambda r: r.metrics.ece <= r.strict_limit, shown="count"),
)
# to within the run's own tolerance, the same for every method
OWN_VERDICT = Column("Calibrated", lambda r: r.metrics.calibrated is True, shown="count")
CONSTANT = Column("L", lambda r: r.metrics.lipschitz_constant, shown="number")
