"""The documentation as a site: `bash scripts/docs`; every warning is an error, and the tutorials are executed."""

import os
from importlib import metadata

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the tutorials: their matrices are too small to share

project = "lipscale"
author = "The lipscale developers"
release = metadata.version("lipscale")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "jupyter_execute"]

html_theme = "furo"
html_title = "lipscale"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path: list[str] = []

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 3

nb_execution_mode = "force"  # what a tutorial shows is what this version answers
nb_execution_in_temp = True  # run folders do not stay
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
