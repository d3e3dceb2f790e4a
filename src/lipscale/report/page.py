"""The page: one self-contained HTML file, with no network and no server, and the figures as files."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment
from markupsafe import Markup

from lipscale._files import write_atomically
from lipscale.errors import UserError
from lipscale.report.classes import render_classes
from lipscale.report.record import RunRecord, read_records
from lipscale.report.tables import cells, shown_settings, side_by_side
from lipscale.report.verdict import ATTACK_NAMES, verdict

if TYPE_CHECKING:
    from lipscale.report.theme import Drawn

TILES = ("accuracy", "ECE", "Lipschitz constant", "certified accuracy")  # what people come for


def write_report(folders: Sequence[Path], out: Path | None = None, *, data_dir: Path | None = None) -> Path:
    """Write the report of one or several finished runs: one HTML page, with the figures in a folder beside it.

    Args:
        folders: The run folders; several are compared on one page.
        out: The page; by default report.html in the run's folder, or in the current one for several runs.
        data_dir: Where the data sets lie now, if not where they were.

    Returns:
        The path of the page.

    Example:
        >>> write_report([Path("runs/digits-mlp-list-1")])  # doctest: +SKIP
        PosixPath('runs/digits-mlp-list-1/report.html')
    """
    from lipscale.report.figures import draw_all  # matplotlib takes a second: only who draws imports it
    from lipscale.report.theme import save_figure

    runs = read_records(folders, data_dir=data_dir)
    if out is None:
        out = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    if out.is_dir():
        raise UserError(f"`out`: {out} is a folder; give a file, such as {out / 'report.html'}")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"`out`: a report is a page, such as {out.with_suffix('.html')}, got {out}")
    drawn = draw_all(runs)
    page = render(runs, drawn)
    for figure in drawn:
        save_figure(figure, figures_folder(folders, out))
    write_atomically(out, page.encode())
    return out


def figures_folder(folders: Sequence[Path], out: Path) -> Path:
    """Where the figures of a page go.

    Args:
        folders: The run folders that the page is about.
        out: The page.

    Returns:
        RUN/figures for a run's own report, else a folder named after the page.

    Example:
        >>> figures_folder([Path("a"), Path("b")], Path("both.html")).name
        'both-figures'
    """
    return folders[0] / "figures" if out.parent == folders[0] else out.with_name(f"{out.stem}-figures")


def render(runs: Sequence[RunRecord], drawn: "Sequence[Drawn]") -> str:
    """The page as text."""
    from lipscale.report.theme import as_svg

    template, css, js = ((files("lipscale.report") / f"page.{kind}").read_text() for kind in ("html", "css", "js"))
    several, ranking = len(runs) > 1, next((figure for figure in drawn if figure.name == "ranking"), None)
    wide = {figure.name: several and figure.name == "reliability" for figure in drawn}
    return Environment(autoescape=True).from_string(template).render(
        title="lipscale: " + ", ".join(run.name for run in runs),
        version=version("lipscale"),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        css=Markup(css), js=Markup(js), runs=runs, verdict=verdict, settings=shown_settings, attacks=ATTACK_NAMES,
        tiles={} if several else {n: c for n, c in cells(runs[0].metrics).items() if n.startswith(TILES)},
        numbers=side_by_side(runs),
        wide=wide,
        figures=sorted((f for f in drawn if f is not ranking), key=lambda figure: wide[figure.name]),  # wide ones last
        classes=render_classes(runs, ranking),
        svg={figure.name: Markup(as_svg(figure.figure, salt=figure.name)) for figure in drawn},
        missing=[f"{run.name}: {sentence}" if several else sentence for run in runs for sentence in run.missing],
        explorer=_explorer(runs),
    )  # fmt: skip


def _explorer(runs: Sequence[RunRecord]) -> dict[str, Any] | None:
    """What the page's script reads: the curves behind the sliders; `largest` is None where nothing is certified."""

    def curve(x: Sequence[float], y: Sequence[float]) -> dict[str, list[float]]:
        return {name: [float(f"{value:.5g}") for value in values] for name, values in (("x", x), ("y", y))}

    shown: list[dict[str, Any]] = []
    largest = 0.0
    for run in runs:
        if run.answers is None:
            continue
        certified = run.answers.certified_curve() if run.metrics.is_certified else None
        largest = max(largest, certified[0][-1] if certified else 0.0)
        threshold, coverage, accuracy = run.answers.selective_curves()
        curves = {"coverage": curve(threshold, coverage), "accuracy": curve(threshold, accuracy)}
        proven = {"certified": curve(*certified) if certified else None}
        shown.append({"name": run.name, "index": run.index, **proven, **curves})
    return {"runs": shown, "largest": _round_up(largest) if largest else None} if shown else None


def _round_up(value: float) -> float:
    """The next number whose quarters are short: 0.808 -> 1, 13 -> 16."""
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * size >= value)
