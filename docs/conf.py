"""The documentation as a site: `bash scripts/docs`; every warning is an error, and the tutorials are executed."""

import os
from importlib import metadata
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the tutorials: their matrices are too small to share

project = "lipscale"
author = "The lipscale developers"
copyright = author
release = metadata.version("lipscale")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
smartquotes = False  # --flags stay flags

html_theme = "furo"
html_title = "lipscale"
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_heading_anchors = 3

nb_execution_mode = "force"  # what a tutorial shows is what this version answers
nb_execution_in_temp = True  # run folders do not stay
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_render_markdown_format = "gfm"  # tables

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"


def as_written(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Show docstrings as they were meant: tables of a package literally, and no type where a property has a colon."""
    if what == "module":
        starts = [i for i in range(1, len(lines)) if lines[i].startswith("    ") and not lines[i - 1].strip()]
        for i in reversed([i for i in starts if not lines[: i - 1] or not lines[i - 2].startswith("    ")]):
            lines[i:i] = [".. code-block:: text", ""]
    elif what in ("property", "attribute") and lines:
        lines[0] = "" if lines[0].startswith("Alias for field number") else lines[0].replace(": ", " \N{EN DASH} ")


def setup(app: Any) -> None:
    """Before napoleon, which reads docstrings at 500."""
    app.connect("autodoc-process-docstring", as_written, priority=400)
