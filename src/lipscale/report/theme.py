"""One look for all figures, in files and on the page, where colours follow the reader's light or dark mode."""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from lipscale._files import write_atomically

# Okabe and Ito's colours, which colour-blind readers can tell apart; on the page each becomes a CSS variable
INK, FAINT, GRID = "#1a1b1c", "#8a8b8c", "#d9dadb"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
GOOD, BAD, BAND = SERIES[0], SERIES[1], "#b0b1b2"
_VARIABLES = {
    INK: "ink", FAINT: "faint", GRID: "grid", BAND: "band", **{colour: f"s{i}" for i, colour in enumerate(SERIES)},
}  # fmt: skip

STYLE: dict[str, Any] = {
    **{"figure.dpi": 100, "savefig.dpi": 200, "figure.constrained_layout.use": True},
    **{"font.size": 10, "font.family": "sans-serif", "text.color": INK},
    **{"axes.labelcolor": INK, "axes.edgecolor": FAINT, "axes.spines.top": False, "axes.spines.right": False},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.6},
    **{"xtick.color": FAINT, "ytick.color": FAINT, "xtick.labelcolor": INK, "ytick.labelcolor": INK},
    **{"legend.frameon": False, "legend.fontsize": 8, "lines.linewidth": 1.6},
    "text.parse_math": False,  # a folder's name is no formula
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and scaled
    "pdf.fonttype": 42,
}


class Drawn(NamedTuple):
    """A figure, its title, and its text alternative, sentence by sentence."""

    name: str
    title: str
    figure: Figure
    caption: list[str]


@contextmanager
def style() -> Iterator[None]:
    """Draw and save in our look, whatever the user's matplotlib is set to."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names in any script; the page has the fonts
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)  # type: ignore[arg-type]
        yield


def colour(i: int) -> str:
    """The colour of the i-th run."""
    return SERIES[i % len(SERIES)]


def save_figure(drawn: Drawn, folder: Path) -> list[Path]:
    """Write a figure as PNG and PDF, and say where."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind in ("png", "pdf"):
        data = io.BytesIO()
        with style():
            drawn.figure.savefig(data, format=kind, metadata={"CreationDate": None} if kind == "pdf" else None)
        paths.append(folder / f"{drawn.name}.{kind}")
        write_atomically(paths[-1], data.getvalue())
    return paths


def as_svg(figure: Figure, *, salt: str) -> str:
    """The figure for the page, its colours as CSS variables; `salt` keeps its ids apart from other figures'."""
    text = io.StringIO()
    with style(), mpl.rc_context({"svg.hashsalt": salt}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    for hexadecimal, name in _VARIABLES.items():
        svg = svg.replace(hexadecimal, f"var(--{name})")
    # ids that matplotlib numbers afresh in each figure, and sizes that the page decides
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)  # within a page they are known
    return re.sub(r'^<svg([^>]*?) width="[^"]*"', r"<svg\1", re.sub(r' height="[^"]*pt"', "", svg, count=1), count=1)
