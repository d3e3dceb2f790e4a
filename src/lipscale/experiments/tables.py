"""Tables as the paper prints them: mean and standard deviation over seeds, the best in bold, the second underlined."""

import csv
import io
import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lipscale._files import write_atomically
from lipscale.experiments.plan import AttackBudget
from lipscale.experiments.profiles import CERTIFIED_AT
from lipscale.experiments.results import Result


@dataclass(frozen=True)
class Cell:
    """A mean over seeds, or `count` of them; `place` 1 is the best of its block, 2 the second."""

    mean: float
    deviation: float | None = None
    place: int = 0
    count: str = ""


@dataclass(frozen=True)
class Column:
    """What is printed of each run, and which value is better: in per cent, as a number, or how many runs have it."""

    title: str
    value: Callable[[Result], float | None]
    better: Literal["higher", "lower", "zero"] | None = None
    shown: Literal["percent", "number", "count"] = "percent"

    def loss(self, cell: Cell) -> float:
        """Smaller is better; what prints alike is alike."""
        mean = round(cell.mean, 2)
        return {"higher": -mean, "lower": mean, "zero": abs(mean), None: 0.0}[self.better]

    def cell(self, runs: Sequence[Result]) -> Cell | None:
        """The mean over these runs; none where no run has a value."""
        values = [float(v) for run in runs if (v := self.value(run)) is not None and math.isfinite(v)]
        if not values:
            return None
        if self.shown == "count":
            return Cell(statistics.mean(values), count=f"{sum(map(bool, values))} of {len(values)}")
        scaled = [100 * value if self.shown == "percent" else value for value in values]
        return Cell(statistics.mean(scaled), statistics.stdev(scaled) if len(scaled) > 1 else None)


class Line(NamedTuple):
    """A row of the table; `block` is what its places are among."""

    block: str
    name: str
    cells: list[Cell | None]


class Table(NamedTuple):
    """A table, ready to be printed."""

    title: str
    corner: str
    columns: Sequence[Column]
    lines: list[Line]


def make_table(
    title: str, corner: str, columns: Sequence[Column], rows: Iterable[tuple[str, str, Sequence[Result]]]
) -> Table:
    """A table of rows (block, name, runs); a row without finished runs is left empty, never out."""
    lines = [Line(block, name, [column.cell(runs) for column in columns]) for block, name, runs in rows]
    return Table(title, corner, columns, lines)


def ranked(table: Table, *, within_blocks: bool = False) -> Table:
    """The table with the best and the second best of each column marked, among all lines or those of a block."""

    def placed(i: int, column: Column, line: Line) -> Cell | None:
        cell = line.cells[i]
        rivals = [other.cells[i] for other in table.lines if other.block == line.block or not within_blocks]
        losses = [column.loss(rival) for rival in rivals if rival is not None]
        if cell is None or column.better is None or len(losses) < 2:
            return cell
        place = 1 + sorted(set(losses)).index(column.loss(cell))  # ties share their place
        return replace(cell, place=place if place <= 2 else 0)

    lines = [line._replace(cells=[placed(i, c, line) for i, c in enumerate(table.columns)]) for line in table.lines]
    return table._replace(lines=lines)


def _texts(table: Table, places: tuple[str, str, str], plain: str, deviating: str, missing: str) -> list[list[str]]:
    """The table as text, its head first; a language has a form for each place, and for a mean without and with more."""

    def show(cell: Cell | None) -> str:
        if cell is None or cell.count:
            return cell.count if cell else missing
        return (plain if cell.deviation is None else deviating).format(
            places[cell.place].format(cell.mean), cell.deviation
        )

    lines = ([f"{line.block} {line.name}".strip(), *map(show, line.cells)] for line in table.lines)
    return [[table.corner, *(column.title for column in table.columns)], *lines]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table for GitHub and for reading as it is; the first row is its head."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *body]) + "\n"


def as_text(table: Table) -> list[list[str]]:
    """The table for a terminal, its head first: a star at the best of each column."""
    return _texts(table, ("{:.2f}", "{:.2f} *", "{:.2f}"), "{}", "{} ± {:.2f}", "n/a")


def as_markdown(table: Table) -> str:
    """The table in Markdown."""
    return markdown(_texts(table, ("{:.2f}", "**{:.2f}**", "<u>{:.2f}</u>"), "{}", "{} ± {:.2f}", "n/a"))


ESCAPES = {"%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "±": r"$\pm$", "xi": r"$\xi$"}


def as_latex(table: Table) -> str:
    """A tabular for booktabs, in the paper's style."""

    def escaped(text: str) -> str:
        return re.sub("|".join(ESCAPES), lambda match: ESCAPES[match[0]], text)

    places = ("{:.2f}", r"\mathbf{{{:.2f}}}", r"\underline{{{:.2f}}}")
    head, *body = _texts(table, places, "${}$", r"${}_{{\pm {:.2f}}}$", "N/A")
    out = [f"% {table.title}", rf"\begin{{tabular}}{{@{{}}l{'c' * len(table.columns)}@{{}}}}", r"\toprule"]
    out.append(" & ".join(map(escaped, head)) + r" \\")
    for _, lines in itertools.groupby(zip(table.lines, body, strict=True), key=lambda pair: pair[0].block):
        out.append(r"\midrule")
        out += [" & ".join([escaped(title), *cells]) + r" \\" for _, (title, *cells) in lines]
    return "\n".join([*out, r"\bottomrule", r"\end{tabular}"]) + "\n"


def as_csv(table: Table) -> str:
    """Means and deviations as plain numbers, for further use."""
    head = ["block", "row", *(part for c in table.columns for part in (c.title, f"{c.title}, deviation"))]
    numbers = ([part for c in line.cells for part in (c and c.mean, c and c.deviation)] for line in table.lines)
    body = ([line.block, line.name, *cells] for line, cells in zip(table.lines, numbers, strict=True))
    return csv_text([head, *body])


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """CSV with plain line ends; None is an empty cell."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def write_table(table: Table, path: Path) -> list[Path]:
    """Write the table as Markdown, LaTeX and CSV, and say where."""
    forms = {Path(f"{path}.md"): as_markdown, Path(f"{path}.tex"): as_latex, Path(f"{path}.csv"): as_csv}
    for place, form in forms.items():
        write_atomically(place, form(table).encode())
    return list(forms)


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
