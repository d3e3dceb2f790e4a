"""The documentation as a site: `bash scripts/docs`; every warning is an error, and the tutorials are executed."""

import os
import pkgutil
import re
from importlib import metadata
from pathlib import Path
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


# classes of API.md have their place there, and none in the pages of their stages
PUBLIC = re.findall(r"autoclass:: (\S+)", (Path(__file__).parent / "API.md").read_text(encoding="utf-8"))


def as_written(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Show docstrings as they were meant: a package's tables literally, |x| as it stands, a property's colon, too."""
    if what == "module":
        starts = [i for i in range(1, len(lines)) if lines[i].startswith("    ") and not lines[i - 1].strip()]
        for i in reversed([i for i in starts if not lines[: i - 1] or not lines[i - 2].startswith("    ")]):
            lines[i:i] = [".. code-block:: text", ""]
        return
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            outside = (
                text if literal % 2 else text.replace("|", r"\|") for literal, text in enumerate(line.split("``"))
            )
            lines[i] = "``".join(outside)
    if what in ("property", "attribute") and lines:
        lines[0] = "" if lines[0].startswith("Alias for field number") else lines[0].replace(": ", " \N{EN DASH} ")


def only_once(app: Any, what: str, name: str, found: Any, skip: bool, options: Any) -> bool | None:
    """Leave a class out of its stage's page where the public names have it."""
    known = isinstance(found, type) and any(found is pkgutil.resolve_name(public) for public in PUBLIC)
    return True if known and what == "module" else None


def setup(app: Any) -> None:
    """Before napoleon, which reads docstrings at 500."""
    app.connect("autodoc-process-docstring", as_written, priority=400)
    app.connect("autodoc-skip-member", only_once)
