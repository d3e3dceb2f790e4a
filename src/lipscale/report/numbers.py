"""The page's tables: one row a number, one column a run; and one row an attack."""

from collections.abc import Sequence
from typing import Any

from lipscale.report.facts import Facts
from lipscale.report.words import ATTACK_NAMES

# name, key, format
MEASURED = (
    ("Accuracy", "accuracy", ".4f"),
    ("ECE", "ece", ".4f"),
    ("ESCE (over-confident if positive)", "esce", "+.4f"),
    ("Maximum calibration error", "maximum_ce", ".4f"),
    ("Adaptive ECE", "adaptive_ece", ".4f"),
    ("Classwise ECE", "classwise_ece", ".4f"),
    ("Smooth ECE", "smooth_ece", ".4f"),
    ("NLL", "nll", ".4f"),
    ("Brier score", "brier", ".4f"),
    ("of it calibration", "brier_calibration", ".4f"),
    ("T* on the test set", "temperature", ".4f"),
    ("Lipschitz constant L", "lipschitz_constant", ".4g"),
    ("Proven bound", "lipschitz_bound", ".6g"),
)


def number_rows(runs: Sequence[Facts]) -> list[dict[str, Any]]:
    """Every number that at least one run has."""
    rows = [_row(name, [_cell(run.metrics, key, form) for run in runs]) for name, key, form in MEASURED]
    rows.insert(2, _row("ECE of a calibrated model", [_floor(run.metrics) for run in runs]))
    rows.insert(3, _row("ECE limit", [_cell(run.metrics, "ece_limit", ".4f") for run in runs]))
    epsilons = {eps: None for run in runs for eps in run.metrics["certified_accuracy"]}  # in order, once each
    for eps in sorted(epsilons, key=float):
        shares = [run.metrics["certified_accuracy"].get(eps) for run in runs]
        cells = [_text("" if share is None else f"{share:.4f}") for share in shares]
        rows.append(_row(f"Certified accuracy at {eps}", cells))
    rows += [
        _row("Radii in", [_text(run.unit) for run in runs]),
        _row("Data, model, method", [_text(_kind(run)) for run in runs]),
        _row("Train, calibration, test samples", [_text(_sizes(run.metrics)) for run in runs]),
        _row("Epochs (Phase I, II)", [_text(_epochs(run.metrics)) for run in runs]),
        _row("Training time", [_text(f"{run.metrics['seconds']:.0f} s") for run in runs]),
    ]
    return [row for row in rows if any(cell["value"] for cell in row["cells"])]


def tiles(run: Facts) -> list[dict[str, str]]:
    """The few numbers that people come for: value, name, and what to hold it against."""
    metrics = run.metrics
    shown = [
        {"value": f"{100 * metrics['accuracy']:.1f} %", "name": "accuracy", "note": f"{metrics['test_size']} samples"},
        {
            "value": f"{metrics['ece']:.4f}",
            "name": "ECE",
            "note": f"limit {metrics.get('ece_limit', float('nan')):.4f}",
        },
    ]
    for eps, share in metrics["certified_accuracy"].items():
        shown.append({"value": f"{100 * share:.1f} %", "name": f"certified at {eps}", "note": run.unit})
    shown.append({"value": f"{metrics['lipschitz_constant']:.4g}", "name": "Lipschitz constant L", "note": ""})
    return shown


def attack_rows(runs: Sequence[Facts]) -> list[tuple[str, ...]]:
    """One row for each run, attack and epsilon."""
    rows = []
    for run in runs:
        for result in run.robustness.values():
            for eps, row in result["at"].items():
                low, high = row["interval"]
                calibration = row["calibration"]
                lower, upper = calibration["certified_confidence"]
                rows.append(
                    (
                        f"{run.name}, {ATTACK_NAMES[result['attack']]}, {eps} ({result['samples']} samples)",
                        f"{row['certified_accuracy']:.4f}",
                        f"{row['robust_accuracy']:.4f} ({low:.3f} to {high:.3f})",
                        *(f"{calibration[kind]['ece']:.4f}" for kind in ("clean", "over", "under", "maximum")),
                        f"{lower:.4f} to {upper:.4f}",
                    )
                )
    return rows


def _row(name: str, cells: list[dict[str, str]]) -> dict[str, Any]:
    return {"name": name, "cells": cells}


def _text(value: str, note: str = "") -> dict[str, str]:
    return {"value": value, "note": note}


def _cell(metrics: dict[str, Any], key: str, form: str) -> dict[str, str]:
    if key not in metrics:
        return _text("")
    ends = metrics.get("intervals", {}).get(key)
    note = "" if ends is None else f"{float(ends[0]):{form}} to {float(ends[1]):{form}}"
    return _text(f"{float(metrics[key]):{form}}", note)


def _floor(metrics: dict[str, Any]) -> dict[str, str]:
    if "ece_band" not in metrics:
        return _text("")
    low, high = metrics["ece_band"]
    return _text(f"{metrics['ece_floor']:.4f}", f"{low:.4f} to {high:.4f}")


def _kind(run: Facts) -> str:
    settings = run.settings
    return f"{settings.data.rsplit('/', 1)[-1]}, {settings.model}, {settings.method}"


def _sizes(metrics: dict[str, Any]) -> str:
    return f"{metrics['train_size']}, {metrics['calibration_size']}, {metrics['test_size']}"


def _epochs(metrics: dict[str, Any]) -> str:
    return f"{metrics['phase1_epochs']}, {metrics['phase2_epochs']}"
