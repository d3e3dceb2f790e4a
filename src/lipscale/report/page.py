"""The page: one self-contained HTML file, with no network and no server, and the figures as files."""

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment
from markupsafe import Markup

from lipscale._files import write_atomically
from lipscale.errors import UserError
from lipscale.report.classes import render_classes
from lipscale.report.record import RunRecord, read_records
from lipscale.report.standings import ranked_runs
from lipscale.report.tables import shown_settings, side_by_side
from lipscale.report.uncertainty import uncertainty_tables
from lipscale.report.verdict import ATTACK_NAMES, verdict
from lipscale.report.words import meaning
from lipscale.runs.headline import first_numbers, headline

if TYPE_CHECKING:
    from lipscale.report.theme import Drawn


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
    from lipscale.report.sliders import STEPS, sliders
    from lipscale.report.theme import as_svg

    template, css, js = (
        (files("lipscale.report") / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    several, ranking = len(runs) > 1, next((figure for figure in drawn if figure.name == "ranking"), None)
    wide = {figure.name: several and figure.name == "reliability" for figure in drawn}
    svg = {figure.name: Markup(as_svg(figure.figure, salt=figure.name)) for figure in drawn}
    return Environment(autoescape=True).from_string(template).render(
        title="lipscale: " + ", ".join(run.name for run in runs),
        version=version("lipscale"),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        css=Markup(css), js=Markup(js), runs=runs, verdict=verdict, settings=shown_settings, attacks=ATTACK_NAMES,
        headline=headline, tiles=first_numbers, meaning=meaning,
        standings=ranked_runs(runs) if several else [],
        numbers=side_by_side(runs), uncertainty=uncertainty_tables,
        wide=wide,
        figures=sorted((f for f in drawn if f is not ranking), key=lambda figure: wide[figure.name]),  # wide ones last
        classes=render_classes(runs, ranking),
        svg=svg,
        sliders=sliders(runs, drawn), steps=STEPS,  # after the figures are drawn: it asks where their axes lie
        missing=[f"{run.name}: {sentence}" if several else sentence for run in runs for sentence in run.missing],
    )  # fmt: skip
