"""Tiny real runs, and made-up ones, for the tests of experiments."""

from types import SimpleNamespace

from lipscale.experiments.plan import Planned
from lipscale.runs.settings import Settings

TINY = {"data": "digits", "model": "mlp", "width": 8, "depth": 1, "epochs": 2, "limit": 300, "device": "cpu"}


def tiny(**changes):
    return Planned(Settings.model_validate({**TINY, **changes}))


def fake(**metrics):
    """What a table or claim sees of a run."""
    return SimpleNamespace(metrics=metrics, **metrics)


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
