"""What is shown of a run, line by line, on the screen and on the page; and the page's tables for several runs."""

from collections.abc import Iterable, Sequence
from typing import Any

from lipscale.metrics.intervals import Interval
from lipscale.report.record import RunRecord
from lipscale.runs.evaluation import Metrics
from lipscale.runs.headline import Cell
from lipscale.training.epoch import counted


def _number(value: float, interval: Interval | None = None, form: str = ".4f") -> Cell:
    note = "" if interval is None else f"{interval[0]:{form}} to {interval[1]:{form}}"
    return Cell(f"{value:{form}}", note)


def cells(metrics: Metrics, epsilons: Iterable[str] = ()) -> dict[str, Cell]:
    """What was measured, and how the training went, by name; with room for the `epsilons` of other runs."""
    of, constant = metrics.intervals, metrics.lipschitz_constant
    settled = {True: "L has settled", False: "epoch limit", None: "no feedback" if constant is None else "fixed L"}
    shares = metrics.certified_accuracy
    ordered = sorted({*shares, *epsilons}, key=float)
    proven = {"proven bound": Cell("none (unconstrained)")}
    if constant is not None:
        proven = {
            "Lipschitz constant L": _number(constant, form=".4g"),
            "proven bound": _number(metrics.lipschitz_bound, form=".7g"),
            **{f"certified accuracy at {e}": _number(shares[e]) if e in shares else Cell("") for e in ordered},
        }
    samples = f"and {metrics.calibration_size} calibration, {metrics.test_size} test"
    return {
        "accuracy": _number(metrics.accuracy, of.accuracy),
        **_beside_accuracy(metrics),
        "calibration error": _number(metrics.calibration_error, metrics.calibration_error_limits),
        "ECE": _number(metrics.ece, of.ece),
        "ECE of a calibrated model": _number(metrics.ece_floor, metrics.ece_band),
        "ECE limit": _number(metrics.ece_limit),
        "ESCE": _number(metrics.esce, of.esce, "+.4f"),
        "maximum calibration error": _number(metrics.maximum_ce, of.maximum_ce),
        "adaptive ECE": _number(metrics.adaptive_ece, of.adaptive_ece),
        "classwise ECE": _number(metrics.classwise_ece, of.classwise_ece),
        "smooth ECE": _number(metrics.smooth_ece, of.smooth_ece),
        "NLL": _number(metrics.nll, of.nll),
        "Brier score": _number(metrics.brier, of.brier),
        "Brier score, calibration part": _number(metrics.brier_calibration, of.brier_calibration),
        "T on the test set": _number(metrics.temperature, metrics.temperature_interval),
        **proven,
        "Phase I": Cell(counted(metrics.phase1_epochs, "epoch"), settled[metrics.settled]),
        "Phase II": Cell(counted(metrics.phase2_epochs, "epoch")),
        "training samples": Cell(f"{metrics.train_size}", samples),
        "training time": Cell(f"{metrics.seconds:.0f} s"),
    }


def _beside_accuracy(metrics: Metrics) -> dict[str, Cell]:
    """What accuracy is worth; of runs from before this was measured it is not known."""
    rate, balanced, area = (
        Cell("not measured" if share is None else f"{share:.4f}", note)
        for share, note in (
            (metrics.majority_rate, f"right by always answering {metrics.commonest}" if metrics.confusion else ""),
            (metrics.balanced_accuracy, "mean recall of the classes"),
            (metrics.auc, "one class against the rest, mean"),
        )
    )
    found = {"commonest class": rate, "balanced accuracy": balanced, "AUC": area}
    if metrics.threshold is not None:
        found["threshold"] = Cell(f"{metrics.threshold:g}", f"from this probability on {metrics.positive}")
    return found


def side_by_side(runs: Sequence[RunRecord]) -> list[tuple[str, list[Cell]]]:
    """A row for each setting in which the runs differ, then for all that was measured; a cell for each run."""
    settings = [shown_settings(run) for run in runs]
    differing = [key for key in settings[0] if len({values[key] for values in settings}) > 1]
    epsilons = {eps for run in runs for eps in run.metrics.certified_accuracy}
    columns = [
        {f"setting {key}": Cell(values[key]) for key in differing} | cells(run.metrics, epsilons) | _about(run)
        for run, values in zip(runs, settings, strict=True)
    ]
    names = max(columns, key=len)  # those of an unconstrained network are among those of any other
    return [(name, [column.get(name, Cell("")) for column in columns]) for name in names]


def _about(run: RunRecord) -> dict[str, Cell]:
    settings = run.settings
    kind = f"{settings.data.rsplit('/', 1)[-1]}, {settings.model}, {settings.method}"
    return {"radii in": Cell(run.unit), "data, model, method": Cell(kind)}


def shown_settings(run: RunRecord) -> dict[str, str]:
    """The settings as text, in their order; where the folder lies is no setting of the run."""
    return {key: _shown(value) for key, value in run.settings.model_dump(mode="json", exclude={"out"}).items()}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return "not set" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
