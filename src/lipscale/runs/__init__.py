"""Runs: from settings to a folder that is enough by itself, and back."""

from lipscale.runs.conformal import ConformalResult, conformal_run
from lipscale.runs.evaluation import Metrics, evaluate
from lipscale.runs.outliers import OutlierResult, outliers_run
from lipscale.runs.posthoc import Posthoc
from lipscale.runs.recalibration import recalibrate_run
from lipscale.runs.run import (
    Run,
    attack_run,
    evaluate_run,
    evaluation_file,
    first_test_samples,
    held_out_samples,
    load,
    read_results,
)
from lipscale.runs.trainer import resume, train
from lipscale.runs.uncertainty import attack_run_uncertainty, stored_uncertainty
from lipscale.settings import Settings, replace

__all__ = [
    "ConformalResult",
    "Metrics",
    "OutlierResult",
    "Posthoc",
    "Run",
    "Settings",
    "attack_run",
    "attack_run_uncertainty",
    "conformal_run",
    "evaluate",
    "evaluate_run",
    "evaluation_file",
    "first_test_samples",
    "held_out_samples",
    "load",
    "outliers_run",
    "read_results",
    "recalibrate_run",
    "replace",
    "resume",
    "stored_uncertainty",
    "train",
]
