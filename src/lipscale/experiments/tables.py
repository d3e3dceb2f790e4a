"""Tables as the paper prints them: mean and standard deviation over seeds, the best in bold, the second underlined."""

import csv
import io
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lipscale.experiments.results import Result

MISSING = "n/a"


@dataclass(frozen=True)
class Column:
    """What is printed of each run, and which value is better: in per cent, as a number, or how many runs have it."""

    title: str
    value: Callable[[Result], float | None]
    better: Literal["higher", "lower", "zero"] | None = None
    shown: Literal["percent", "number", "count"] = "percent"
    digits: int = 2

    def loss(self, mean: float) -> float:
        """Smaller is better."""
        return {"higher": -mean, "lower": mean, "zero": abs(mean), None: 0.0}[self.better]


@dataclass(frozen=True)
class Cell:
    """A mean over seeds, or `count` of them; `place` 1 is the best of its block, 2 the second."""

    mean: float
    deviation: float | None
    digits: int
    place: int = 0
    count: str = ""


@dataclass(frozen=True)
class Line:
    """A row of the table; `block` is what its places are among."""

    block: str
    name: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Table:
    """A table, ready to be printed."""

    title: str
    corner: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]


def make_table(
    title: str,
    corner: str,
    columns: Sequence[Column],
    rows: Sequence[tuple[str, str, Sequence[Result]]],
) -> Table:
    """A table of rows (block, name, runs); a row without finished runs is left empty, never out."""
    lines = [Line(block, name, tuple(_cell(column, runs) for column in columns)) for block, name, runs in rows]
    return Table(title, corner, tuple(columns), tuple(lines))


def ranked(table: Table, *, within_blocks: bool = False) -> Table:
    """The table with the best and the second best of each column marked, among all lines or those of a block.

    What prints alike is alike: ties share their place.
    """
    lines = list(table.lines)
    for block in {line.block if within_blocks else "" for line in lines}:
        members = [i for i, line in enumerate(lines) if not within_blocks or line.block == block]
        for k, column in enumerate(table.columns):
            shown = {i: round(cell.mean, cell.digits) for i in members if (cell := lines[i].cells[k]) is not None}
            if column.better is None or len(shown) < 2:
                continue
            for i, value in shown.items():
                better = {column.loss(v) for v in shown.values()}
                place = 1 + sum(loss < column.loss(value) for loss in better)
                cells = list(lines[i].cells)
                cell = cells[k]
                assert cell is not None
                cells[k] = replace(cell, place=place if place <= 2 else 0)
                lines[i] = replace(lines[i], cells=tuple(cells))
    return replace(table, lines=tuple(lines))


def as_markdown(table: Table) -> str:
    """For GitHub and for reading as it is."""

    def show(cell: Cell | None) -> str:
        if cell is None:
            return MISSING
        if cell.count:
            return cell.count
        text = {0: "{}", 1: "**{}**", 2: "<u>{}</u>"}[cell.place].format(f"{cell.mean:.{cell.digits}f}")
        return text if cell.deviation is None else f"{text} ± {cell.deviation:.{cell.digits}f}"

    head = [table.corner, *(column.title for column in table.columns)]
    body = [[f"{line.block} {line.name}".strip(), *map(show, line.cells)] for line in table.lines]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def as_latex(table: Table) -> str:
    """A tabular for booktabs, in the paper's style."""

    def show(cell: Cell | None) -> str:
        if cell is None:
            return "N/A"
        if cell.count:
            return cell.count
        number = f"{cell.mean:.{cell.digits}f}"
        number = {0: "{}", 1: r"\mathbf{{{}}}", 2: r"\underline{{{}}}"}[cell.place].format(number)
        spread = "" if cell.deviation is None else rf"_{{\pm {cell.deviation:.{cell.digits}f}}}"
        return f"${number}{spread}$"

    def words(text: str) -> str:
        for plain, escaped in (("%", r"\%"), ("_", r"\_"), ("&", r"\&"), ("#", r"\#"), ("±", r"$\pm$")):
            text = text.replace(plain, escaped)
        return text.replace("xi", r"$\xi$")

    out = [rf"% {table.title}", rf"\begin{{tabular}}{{@{{}}l{'c' * len(table.columns)}@{{}}}}", r"\toprule"]
    out.append(" & ".join(map(words, [table.corner, *(column.title for column in table.columns)])) + r" \\")
    block = None
    for line in table.lines:
        if line.block != block:
            out.append(r"\midrule")
            block = line.block
        out.append(" & ".join([words(f"{line.block} {line.name}".strip()), *map(show, line.cells)]) + r" \\")
    return "\n".join([*out, r"\bottomrule", r"\end{tabular}"]) + "\n"


def as_csv(table: Table) -> str:
    """Means and deviations as plain numbers, for further use."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    titles = [column.title for column in table.columns]
    writer.writerow(["block", "row", *(part for title in titles for part in (title, f"{title}, deviation"))])
    for line in table.lines:
        numbers: list[float | str] = []
        for cell in line.cells:
            deviation = None if cell is None else cell.deviation
            numbers += ["" if cell is None else cell.mean, "" if deviation is None else deviation]
        writer.writerow([line.block, line.name, *numbers])
    return out.getvalue()


def _cell(column: Column, runs: Sequence[Result]) -> Cell | None:
    values = [value for run in runs if (value := column.value(run)) is not None and math.isfinite(value)]
    if not values:
        return None
    if column.shown == "count":
        return Cell(statistics.mean(values), None, 2, count=f"{sum(map(bool, values))} of {len(values)}")
    scaled = [100 * value if column.shown == "percent" else value for value in values]
    deviation = statistics.stdev(scaled) if len(scaled) > 1 else None
    return Cell(statistics.mean(scaled), deviation, column.digits)
