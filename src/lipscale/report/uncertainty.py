"""How far to trust uncertainty, as tables of text: what is proven, what attacks did, what a calibrator would change."""

from typing import Any, NamedTuple

from lipscale.certificates import UncertaintyUnderAttack
from lipscale.report.record import RunRecord
from lipscale.runs import Posthoc
from lipscale.runs.evaluation import Metrics

THRESHOLD = "0.9"  # on the confidence, of the selective accuracy that is shown
NAMES = {
    "nll": "NLL",
    "brier": "Brier score",
    "ece": "ECE",
    "aurc": "AURC",
    "selective_risk": "errors of surest 80 %",
}


class TextTable(NamedTuple):
    """A title, a head, rows of text and a remark."""

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str


def worst_case_table(metrics: Metrics, unit: str) -> TextTable | None:
    """A row for each metric: as measured, and what it is proven not to exceed at each epsilon."""
    cases = metrics.worst_case
    if not cases:
        return None
    rows = [
        [name, _shown(getattr(metrics, key)), *(_shown(getattr(case, key)) for case in cases.values())]
        for key, name in NAMES.items()
    ]
    kept = [case.selective[THRESHOLD] for case in cases.values() if THRESHOLD in case.selective]
    rows.append([f"share from {THRESHOLD} on", "", *(_shown(k.coverage) for k in kept)])
    rows.append([f"accuracy from {THRESHOLD} on", "", *(_shown(k.accuracy) for k in kept)])
    title = f"Proven for every change of every input up to epsilon (l2, {unit})"
    note = f"At most, and in the last two rows at least: samples that stay at a confidence of {THRESHOLD} or more."
    return TextTable(title, ["", "measured", *(f"up to {eps}" for eps in cases)], rows, note)


def attacks_table(found: UncertaintyUnderAttack, unit: str) -> TextTable:
    """A row for each attack: what it made of the metrics, and below the worst case."""
    keys = ("accuracy", "confidence", "ece", "nll", "aurc", "selective_risk")

    def row(*names: str, of: Any) -> list[str]:
        return [*names, *(_shown(getattr(of, key)) if hasattr(of, key) else "" for key in keys)]

    rows = [row("0", "none", of=found.clean)]
    for eps, there in found.at.items():
        rows += [row(eps, name, of=measured) for name, measured in there.attacked.items()]
        rows += [row(eps, "at most", of=there.certified)] if there.certified else []
    subset = f"{found.samples} of {found.test_size} test samples (seed {found.seed})"
    return TextTable(
        f"Attacks on uncertainty, on {subset}; epsilon in {unit}",
        ["epsilon", "attack", "accuracy", "confidence", "ECE", "NLL", "AURC", "errors of surest 80 %"],
        rows,
        "At most: proven. ace, over, under and maximum keep every class; the others do not care. No sample and no "
        "metric went beyond what is proven."
        if any(there.certified for there in found.at.values())
        else "The network is unconstrained: nothing is proven about it.",
    )


def posthoc_table(found: Posthoc | None) -> TextTable | None:
    """A row for each calibrator: what it would change, and what becomes of the radii."""
    if found is None:
        return None
    epsilons = list(next(iter(found.rows.values())).certified_accuracy)[:3]  # as many as a terminal has room for
    rows = [
        [
            *(name, _shown(row.accuracy), _shown(row.nll), _shown(row.ece), _shown(row.ece_limit), row.radii),
            *(_shown(row.certified_accuracy.get(eps)) for eps in epsilons),
        ]
        for name, row in found.rows.items()
    ]
    head = ["calibrator", "accuracy", "NLL", "ECE", "limit", "radii", *(f"CRA {eps}" for eps in epsilons)]
    on = "the test part in turns, four fifths for the other" if found.fitted_on == "test" else "the calibration part"
    note = (
        f"Each is fitted on {found.samples:,} samples ({on}); none is the network as it is. Limit: of a calibrated "
        "model's ECE. Radii are kept, or are the calibrator's own, or nothing is proven; CRA: certified accuracy."
    )
    return TextTable("What post-hoc calibration would change", head, rows, note)


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def uncertainty_tables(run: RunRecord) -> list[TextTable]:
    """All of them that a run has."""
    attacks = run.uncertainty and attacks_table(run.uncertainty, run.unit)
    tables = (worst_case_table(run.metrics, run.unit), attacks, posthoc_table(run.metrics.posthoc))
    return [table for table in tables if table]
