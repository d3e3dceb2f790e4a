"""The documentation as a site: it builds without a warning, and its pages and pictures hold."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PICTURES = sorted((DOCS / "figures").glob("*.svg"))


def pages() -> set[str]:
    """Every page of the documentation, without its suffix."""
    found = (path.relative_to(DOCS) for path in DOCS.rglob("*.md") if "_build" not in path.parts)
    return {path.with_suffix("").as_posix() for path in found}


def test_every_page_has_one_place_in_the_navigation():
    listed = []
    for page in ("index", "api/index"):
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        trees = re.findall(r"```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)```", text, re.DOTALL)
        folder = Path(page).parent
        listed += [(folder / line).as_posix() for tree in trees for line in tree.split()]
    assert sorted(listed) == sorted(pages() - {"index"})


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_small_and_readable_on_light_and_on_dark(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < 100_000
    root = ElementTree.fromstring(text)
    assert root.find("{http://www.w3.org/2000/svg}title").text
    light, dark = re.search(
        r"<style>:root \{(.*?)\} @media \(prefers-color-scheme: dark\) \{ :root \{(.*?)\}", text, re.S
    ).groups()
    for theme in (light, dark):
        colours = dict(re.findall(r"--([\w-]+): (#\w{6});", theme))
        used = set(re.findall(r"var\(--(\w+)\)", text))
        assert used <= set(colours)
        assert contrast(colours["ink"], colours["card"]) > 7
        assert all(contrast(colours[name], colours["card"]) > 3 for name in used & {"s0", "s1", "s2"})


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, from 1 to 21 (WCAG 2)."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.long
def test_the_site_builds_without_a_warning(tmp_path):
    for package in ("myst_nb", "furo", "ipykernel"):
        pytest.importorskip(package, reason="pip install -e '.[docs]'")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(DOCS),
        str(tmp_path / "html"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    first = (tmp_path / "html" / "tutorials" / "first_run.html").read_text(encoding="utf-8")
    assert "certified radius" in first
    assert "calibrated" in first
