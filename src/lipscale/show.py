"""Results as tables on the screen."""

from typing import Any

from rich.console import Console
from rich.table import Table

from lipscale.predict import Prediction


def print_metrics(metrics: dict[str, Any], unit: str) -> None:
    """A run's metrics, one a line."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    settled = {True: "L has settled", False: "epoch limit", None: "fixed L"}[metrics.get("settled")]
    direction = "over" if metrics["esce"] > 0 else "under"
    rows = {
        "accuracy": f"{metrics['accuracy']:.4f}",
        "NLL": f"{metrics['nll']:.4f}",
        "Brier score": f"{metrics['brier']:.4f}",
        "ECE": f"{metrics['ece']:.4f}",
        "ESCE": f"{metrics['esce']:+.4f} ({direction}-confident)",
        "T* on the test set": f"{float(metrics['temperature']):.4f}",
        "Lipschitz constant L": f"{metrics['lipschitz_constant']:.4g}",
        "proven bound": f"{metrics['lipschitz_bound']:.7g}",
        **{f"certified accuracy at {e}": f"{v:.4f}" for e, v in metrics["certified_accuracy"].items()},
        "radii in": unit,
        "Phase I": f"{metrics['phase1_epochs']} epochs ({settled})",
        "Phase II": f"{metrics['phase2_epochs']} epochs",
        "samples": f"{metrics['train_size']} train, {metrics['calibration_size']} calibration, "
        f"{metrics['test_size']} test",
        "training time": f"{metrics['seconds']:.0f} s",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    Console().print(table)


def print_predictions(answers: list[Prediction], truth: list[str]) -> None:
    """Predictions, one a line, with the true classes where they are known."""
    table = Table("input", "class", "probability", "certified radius", box=None, padding=(0, 2, 0, 0))
    if answers[0].lowest is not None:
        table.add_column("certified range")
    if truth:
        table.add_column("truth")
    for i, answer in enumerate(answers):
        row = [answer.source, answer.label, f"{answer.probability:.4f}", f"{answer.radius:.4f}"]
        if answer.lowest is not None:
            row.append(f"{answer.lowest:.4f} to {answer.highest:.4f}")
        table.add_row(*row, *truth[i : i + 1])
    Console().print(table)
    Console().print(f"Radii are l2 distances in {answers[0].unit}.")
