"""The page's tables: one row a number, one column a run; and one row an attack."""

from collections.abc import Sequence
from typing import Any

from lipscale.report.record import Facts
from lipscale.report.verdict import ATTACK_NAMES, MEASURED, has_certificate

ABOUT_L = (
    ("T* on the test set", "temperature", ".4f"),
    ("Lipschitz constant L", "lipschitz_constant", ".4g"),
    ("proven bound", "lipschitz_bound", ".6g"),
)


def number_rows(runs: Sequence[Facts]) -> list[dict[str, Any]]:
    """Every number that at least one run has."""
    table = (*MEASURED, *ABOUT_L)
    rows = [_row(name, [_cell(run.metrics, key, form) for run in runs]) for name, key, form in table]
    rows.insert(2, _row("ECE of a calibrated model", [_floor(run.metrics) for run in runs]))
    rows.insert(3, _row("ECE limit", [_cell(run.metrics, "ece_limit", ".4f") for run in runs]))
    epsilons = {eps: None for run in runs for eps in _certified(run.metrics)}  # in order, once each
    for eps in sorted(epsilons, key=float):
        shares = [_certified(run.metrics).get(eps) for run in runs]
        cells = [_text("" if share is None else f"{share:.4f}") for share in shares]
        rows.append(_row(f"certified accuracy at {eps}", cells))
    rows += [
        _row("radii in", [_text(run.unit) for run in runs]),
        _row("data, model, method", [_text(_kind(run)) for run in runs]),
        _row("train, calibration, test samples", [_text(_sizes(run.metrics)) for run in runs]),
        _row("epochs (Phase I, II)", [_text(_epochs(run.metrics)) for run in runs]),
        _row("training time", [_text(f"{run.metrics['seconds']:.0f} s") for run in runs]),
    ]
    return _differences(runs) + [row for row in rows if any(cell["value"] for cell in row["cells"])]


def _differences(runs: Sequence[Facts]) -> list[dict[str, Any]]:
    """The settings in which the runs differ: what a comparison is about."""
    settings = [shown_settings(run) for run in runs]
    keys = [key for key in settings[0] if len({values[key] for values in settings}) > 1]
    return [_row(f"setting {key}", [_text(values[key]) for values in settings]) for key in keys]


def shown_settings(run: Facts) -> dict[str, str]:
    """The settings as text, in their order; where the folder lies is no setting of the run."""
    values = run.settings.model_dump(mode="json", exclude={"out"})
    return {key: _shown(value) for key, value in values.items()}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return "not set" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def tiles(run: Facts) -> list[dict[str, str]]:
    """The few numbers that people come for: value, name, and what to hold it against."""
    metrics = run.metrics
    shown = [
        {"value": f"{100 * metrics['accuracy']:.1f} %", "name": "accuracy", "note": f"{metrics['test_size']} samples"},
        {
            "value": f"{metrics['ece']:.4f}",
            "name": "ECE",
            "note": _limit(metrics),
        },
    ]
    for eps, share in _certified(metrics).items():
        shown.append({"value": f"{100 * share:.1f} %", "name": f"certified at {eps}", "note": run.unit})
    if has_certificate(metrics):
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
                certified = has_certificate(run.metrics)
                rows.append(
                    (
                        f"{run.name}, {ATTACK_NAMES[result['attack']]}, {eps} ({row['samples']} samples)",
                        f"{row['certified_accuracy']:.4f}" if certified else "none",
                        f"{row['robust_accuracy']:.4f} ({low:.3f} to {high:.3f})",
                        *(f"{calibration[kind]['ece']:.4f}" for kind in ("clean", "over", "under", "maximum")),
                        f"{lower:.4f} to {upper:.4f}" if certified else "none",
                    )
                )
    return rows


def _row(name: str, cells: list[dict[str, str]]) -> dict[str, Any]:
    return {"name": name, "cells": cells}


def _text(value: str, note: str = "") -> dict[str, str]:
    return {"value": value, "note": note}


def _cell(metrics: dict[str, Any], key: str, form: str) -> dict[str, str]:
    if metrics.get(key) is None or (not has_certificate(metrics) and key == "lipschitz_bound"):
        return _text("")
    ends = metrics.get("intervals", {}).get(key)
    note = "" if ends is None else f"{float(ends[0]):{form}} to {float(ends[1]):{form}}"
    return _text(f"{float(metrics[key]):{form}}", note)


def _certified(metrics: dict[str, Any]) -> dict[str, float]:
    """Certified accuracies, where there is a certificate; without one they are zero, and say nothing."""
    return metrics["certified_accuracy"] if has_certificate(metrics) else {}


def _limit(metrics: dict[str, Any]) -> str:
    return f"limit {metrics['ece_limit']:.4f}" if "ece_limit" in metrics else ""


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
