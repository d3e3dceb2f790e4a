"""The documentation as a site: pip install -e '.[docs]' -c constraints-cpu.txt && sphinx-build docs docs/_build."""

project = "lipscale"
author = "The lipscale developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
suppress_warnings = ["myst.xref_missing"]  # links to files beside the pages, for readers on GitHub
