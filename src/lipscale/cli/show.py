"""Results as tables on the screen."""

from typing import Any

from rich.console import Console
from rich.table import Table

from lipscale.report.verdict import ATTACK_NAMES, MEASURED, has_certificate, verdict
from lipscale.runs.predict import Prediction


def print_metrics(metrics: dict[str, Any], unit: str) -> None:
    """A run's metrics, one a line, then the verdict."""
    table = Table("", "", "95 % interval", box=None, padding=(0, 2, 0, 0))
    for name, key, form in MEASURED:
        if key in metrics:
            ends = metrics.get("intervals", {}).get(key)
            table.add_row(
                name, f"{metrics[key]:{form}}", f"{float(ends[0]):{form}} to {float(ends[1]):{form}}" if ends else ""
            )
    if "ece_band" in metrics:
        low, high = metrics["ece_band"]
        table.add_row("ECE of a calibrated model", f"{metrics['ece_floor']:.4f}", f"{low:.4f} to {high:.4f}")
        table.add_row("ECE limit", f"{metrics['ece_limit']:.4f}")
    settled = {True: "L has settled", False: "epoch limit", None: "fixed L"}[metrics.get("settled")]
    if has_certificate(metrics):
        proven = {
            "Lipschitz constant L": f"{metrics['lipschitz_constant']:.4g}",
            "proven bound": f"{float(metrics['lipschitz_bound']):.7g}",
            **{f"certified accuracy at {e}": f"{v:.4f}" for e, v in metrics["certified_accuracy"].items()},
        }
    else:
        settled, proven = "no feedback", {"proven bound": "none (unconstrained)"}
    rows = {
        "T* on the test set": f"{float(metrics['temperature']):.4f}",
        **proven,
        "Phase I": f"{metrics['phase1_epochs']} epochs",
        "Phase II": f"{metrics['phase2_epochs']} epochs",
        "training samples": f"{metrics['train_size']}",
        "training time": f"{metrics['seconds']:.0f} s",
    }
    notes = {
        "Phase I": settled,
        "training samples": f"and {metrics['calibration_size']} calibration, {metrics['test_size']} test",
    }
    for name, value in rows.items():
        table.add_row(name, value, notes.get(name, ""))
    console = Console()
    console.print(table)
    console.print()
    for sentence in verdict(metrics, unit):
        console.print(sentence, highlight=False, markup=False)


def print_robustness(result: dict[str, Any], unit: str, *, certified: bool = True) -> None:
    """Certified and empirical robust accuracy, then calibration under attack, one epsilon a line."""
    name = ATTACK_NAMES[result["attack"]]
    console = Console()
    subset = f"{result['samples']} of {result['test_size']} test samples (seed {result['seed']})"
    console.print(f"\nAttacks on {subset}; epsilon in {unit}\n", highlight=False)
    accuracy = Table(
        "epsilon", "certified accuracy", f"left by {name}", "95 % interval", box=None, padding=(0, 2, 0, 0)
    )
    calibration = Table(
        "epsilon", "ECE", "over", "under", "maximum", "proven mean confidence", box=None, padding=(0, 2, 0, 0)
    )
    for eps, row in result["at"].items():
        low, high = row["interval"]
        proven = f"{row['certified_accuracy']:.4f}" if certified else "none"
        accuracy.add_row(eps, proven, f"{row['robust_accuracy']:.4f}", f"{low:.4f} to {high:.4f}")
        errors = (f"{row['calibration'][kind]['ece']:.4f}" for kind in ("clean", "over", "under", "maximum"))
        low, high = row["calibration"]["certified_confidence"]
        calibration.add_row(eps, *errors, f"{low:.4f} to {high:.4f}" if certified else "none")
    console.print(accuracy)
    console.print("\nECE after attacks on confidence that keep every class:", highlight=False)
    console.print(calibration)


def print_predictions(answers: list[Prediction], truth: list[str], *, certified: bool = True) -> None:
    """Predictions, one a line, with what is certified and with the true classes where they are known."""
    table = Table("input", "class", "probability", box=None, padding=(0, 2, 0, 0))
    if certified:
        table.add_column("certified radius")
    if certified and answers[0].lowest is not None:
        table.add_column("certified range")
    if truth:
        table.add_column("truth")
    for i, answer in enumerate(answers):
        row = [answer.source, answer.label, f"{answer.probability:.4f}"]
        if certified:
            row.append(f"{answer.radius:.4f}")
        if certified and answer.lowest is not None:
            row.append(f"{answer.lowest:.4f} to {answer.highest:.4f}")
        table.add_row(*row, *truth[i : i + 1])
    Console().print(table)
    radii = f"Radii are l2 distances in {answers[0].unit}."
    Console().print(radii if certified else "The network is unconstrained and carries no certificate.")
