"""A library's words in those of the command line, and names from files as a terminal may show them."""

import re

from rich.markup import escape

from lipscale.settings import Settings


def as_commands(message: str) -> str:
    """A library's message in the words of the command line: `data_dir` is --data-dir, lipscale.resume is a command."""
    message = re.sub(r"lipscale\.resume\('(.*?)'\)", r"lipscale train --resume \1", message)
    message = message.replace("lipscale.Settings lists them all", "lipscale train --help lists them all")
    flags = {
        *Settings.model_fields,
        "threshold",
        "positive",
        "attack",
        "score",
        "epsilon",
        "splits",
        "penalty",
        "free",
        "against",
    }
    return re.sub(r"`(\w+)`", lambda m: f"--{m[1].replace('_', '-')}" if m[1] in flags else m[0], message)


def printable(name: str) -> str:
    """A name from a file: markup stays text, and control codes do not reach the terminal."""
    return escape("".join(c if c.isprintable() else " " for c in name))
