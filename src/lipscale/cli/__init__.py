"""The command line: train | evaluate | predict | audit | report | data | compare | reproduce | sweep."""

from lipscale.cli.commands import app, main

__all__ = ["app", "main"]
