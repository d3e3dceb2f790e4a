"""The README as PyPI shows it, with the files of this release behind its links; all else is in pyproject.toml."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
place = project["urls"]["Homepage"]
readme = Path("README.md").read_text(encoding="utf-8")
# ![a picture](docs/x.png) and <img src="docs/x.png">, then [a page](docs/X.md); what has a scheme or is a #part stays
picture = rf"{place}/raw/v{project['version']}/"
readme = re.sub(r'(!\[[^]]*\]\(|<img [^>]*src=")(?!\w+:|#|/)', rf"\g<1>{picture}", readme)
readme = re.sub(r"\]\((?!\w+:|#|/)", f"]({place}/blob/v{project['version']}/", readme)

setup(long_description=readme, long_description_content_type="text/markdown")
