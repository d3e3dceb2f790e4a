"""The look of the pictures: one SVG each, text as text, readable on light and on dark pages."""

import re
from pathlib import Path

from matplotlib.figure import Figure

import lipscale.report
from lipscale.report.theme import as_svg

FOLDER = Path(__file__).parent
_ROOTS = re.compile(r":root \{[^}]*\}")


def save(figure: Figure, name: str, title: str) -> None:
    """Write NAME.svg with the colours of our reports, which follow the reader's light or dark mode."""
    light, dark = _ROOTS.findall((Path(lipscale.report.__file__).parent / "page.css").read_text())[:2]
    head = (
        f"<title>{title}</title><style>{light} @media (prefers-color-scheme: dark) {{ {dark} }}</style>"
        '<rect width="100%" height="100%" rx="8" fill="var(--card)"/>'
    )
    if (layout := figure.get_layout_engine()) is not None:
        layout.set(w_pad=0.1, h_pad=0.1)  # inches, off the border of the card
    svg = as_svg(figure, salt=name)
    svg = svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"', 1)
    end = svg.index(">") + 1
    tidy = re.sub(r"[ \t]+\n", "\n", f"{svg[:end]}{head}{svg[end:].rstrip()}\n")
    (FOLDER / f"{name}.svg").write_text(tidy, encoding="utf-8")
