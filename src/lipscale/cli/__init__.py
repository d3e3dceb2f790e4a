"""The command line: train | evaluate | predict | conformal | ood | audit | report | export | data | compare | ..."""

from lipscale.cli.commands import app, main

__all__ = ["app", "main"]
