"""Tiny real runs, and made-up ones, for the tests of experiments."""

from dataclasses import MISSING, fields, replace
from types import SimpleNamespace

from lipscale.experiments.plan import Planned
from lipscale.metrics.summary import Intervals
from lipscale.runs.evaluation import Metrics
from lipscale.settings import Settings

TINY = {"data": "digits", "model": "mlp", "width": 8, "depth": 1, "epochs": 2, "limit": 300, "device": "cpu"}
TINY |= {"calibration_fraction": 0.1}


def tiny(**changes):
    return Planned(Settings.model_validate({**TINY, **changes}))


def fake(**metrics):
    """What a table or claim sees of a run."""
    return SimpleNamespace(metrics=SimpleNamespace(**metrics), **metrics)


def made_up_metrics(*, esce=(-0.01, 0.01), **changes):
    """The metrics of a calibrated run of LiST, with an interval of its ESCE; whatever else is given is changed."""
    needed = (field.name for field in fields(Metrics) if field.default is field.default_factory is MISSING)
    zeros = dict.fromkeys(needed, 0.0)
    intervals = Intervals(**dict.fromkeys((field.name for field in fields(Intervals)), (0.0, 0.0)))
    known = {
        **{"accuracy": 0.9, "test_size": 1000, "ece": 0.01, "ece_floor": 0.012, "ece_limit": 0.02, "calibrated": True},
        **{"certified_accuracy": {"0.25": 0.6}, "lipschitz_constant": 5.0, "phase1_epochs": 40, "settled": True},
        **{"calibration_error": 0.01, "calibration_error_limits": (0.0, 0.015), "calibration_tolerance": 0.02},
        **{"samples_to_decide": 0, "as_calibrated_as_its_set": True, "temperature": 1.02},
        **{"temperature_interval": (0.97, 1.08), "temperature_p_value": 0.4},
        **{"advice": None, "ece_band": (0.0, 0.02), "intervals": replace(intervals, esce=esce)},
    }
    return Metrics(**{**zeros, **known, **changes})


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
