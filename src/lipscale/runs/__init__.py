"""Runs: from settings to a folder that is enough by itself, and back."""

from lipscale.runs.evaluation import Metrics, evaluate
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
from lipscale.settings import Settings, replace

__all__ = [
    "Metrics",
    "Run",
    "Settings",
    "attack_run",
    "evaluate",
    "evaluate_run",
    "evaluation_file",
    "first_test_samples",
    "held_out_samples",
    "load",
    "read_results",
    "replace",
    "resume",
    "train",
]
