"""The classes of a run, one by one: a table, what is confused with what, and for two classes what a threshold costs."""

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import torch
from jinja2 import Environment
from markupsafe import Markup

from lipscale.report.record import RunRecord
from lipscale.runs.evaluation import Metrics

if TYPE_CHECKING:
    from lipscale.report.theme import Drawn

NOTHING = "-"  # of a class without a sample, or without an answer
MOST_ROWS, MOST_IN_MATRIX, MOST_CONFUSIONS = 30, 20, 15
USUAL = 0.5
THRESHOLDS = (0.9, 0.7, USUAL, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)
COSTS = (
    "lipscale predict and evaluate take it as --threshold. If a missed one costs c times as much as a false alarm, "
    "1 / (1 + c) is the cheapest threshold, as far as the probabilities are calibrated."
)
Row = dict[str, str]  # what is shown, by column


def class_rows(metrics: Metrics, *, most: int, brief: bool = False) -> list[Row]:
    """A row for each class, or for the `most` with the smallest recall; `brief` leaves some columns out."""
    order: list[int] = list(range(len(metrics.recall)))
    if len(order) > most:
        occurring = [c for c in order if metrics.recall[c] is not None]
        order = sorted(occurring, key=lambda c: metrics.recall[c] or 0.0)[:most]
    return [_class_row(metrics, c, brief=brief) for c in order]


def _class_row(metrics: Metrics, c: int, *, brief: bool) -> Row:
    proven = list(metrics.certified_recall.items() if metrics.is_certified else ())
    row = {
        "class": metrics.classes[c],
        "samples": str(metrics.counts[c]),
        "recall": _shown(metrics.recall[c]),
        **{f"certified at {eps}": _shown(shares[c]) for eps, shares in (proven[:1] if brief else proven)},
        "precision": _shown(metrics.precision[c]),
        "AUC": _shown(metrics.auc_by_class[c]),
    }
    calibration = {
        "average precision": _shown(metrics.average_precision[c]),
        "ECE": _shown(metrics.ece_by_class[c]),
        "p minus share": _shown(metrics.gap_by_class[c], "+.4f"),
    }
    return row if brief else row | calibration


def _shown(share: float | None, form: str = ".4f") -> str:
    return NOTHING if share is None else f"{share:{form}}"


def render_classes(runs: Sequence[RunRecord], figure: "Drawn | None") -> Markup:
    """The section of a report; nothing where no run has measured its classes."""
    shown = [_about(run) for run in runs if run.metrics.confusion]
    if not shown:
        return Markup("")
    from lipscale.report.theme import as_svg

    template = (files("lipscale.report") / "classes.html").read_text(encoding="utf-8")
    svg = None if figure is None else Markup(as_svg(figure.figure, salt=figure.name))
    return Markup(Environment(autoescape=True).from_string(template).render(runs=shown, figure=figure, svg=svg))


def _about(run: RunRecord) -> dict[str, Any]:
    """What the template shows of a run."""
    metrics, many = run.metrics, len(run.metrics.classes)
    return {
        "name": run.name,
        "metrics": metrics,
        "rows": class_rows(metrics, most=MOST_ROWS),
        "note": f"The {MOST_ROWS} of {many} classes with the smallest recall." if many > MOST_ROWS else "",
        "matrix": _matrix(metrics) if many <= MOST_IN_MATRIX else None,
        "confusions": _commonest_confusions(metrics) if many > MOST_IN_MATRIX else None,
        "costs": threshold_rows(run),
        "costs_note": f"From this probability on {metrics.classes[rarer(metrics)]!r} is answered. {COSTS}",
    }


def _matrix(metrics: Metrics) -> list[tuple[str, list[dict[str, Any]]]]:
    """The confusion matrix, row by row, with the share of its row that each cell is."""
    return [
        (metrics.classes[t], [{"count": n, "share": n / max(1, sum(row)), "right": a == t} for a, n in enumerate(row)])
        for t, row in enumerate(metrics.confusion)
    ]


def _commonest_confusions(metrics: Metrics) -> list[Row]:
    cells = [(n, t, a) for t, row in enumerate(metrics.confusion) for a, n in enumerate(row) if n and a != t]
    counts = metrics.counts
    return [
        {"truth": metrics.classes[t], "answer": metrics.classes[a], "samples": f"{n} of {counts[t]}"}
        for n, t, a in sorted(cells, reverse=True)[:MOST_CONFUSIONS]
    ]


def rarer(metrics: Metrics) -> int:
    """The class with the fewest samples."""
    return metrics.counts.index(min(metrics.counts))


def threshold_rows(run: RunRecord) -> list[Row]:
    """What it costs to answer the rarer of two classes from each probability on; nothing where that means nothing."""
    if run.answers is None or len(run.metrics.classes) != 2 or run.metrics.auc is None:
        return []
    truth = run.answers.labels == rarer(run.metrics)
    p = torch.softmax(run.answers.logits.double(), 1)[:, rarer(run.metrics)]
    own_share = float(f"{float(truth.double().mean()):.2g}")
    rows = []
    for threshold in sorted({*THRESHOLDS, own_share}, reverse=True):
        answered = p >= threshold
        hits, alarms, total = (int(part.sum()) for part in (answered & truth, answered & ~truth, truth))
        if threshold != USUAL and hits + alarms == 0:  # there is nothing to compare
            continue
        rows.append(
            {
                "threshold": f"{threshold:g}",
                "found": f"{hits} of {total}",
                "missed": str(total - hits),
                "false alarms": str(alarms),
                "precision": _shown(hits / (hits + alarms) if hits + alarms else None),
                "accuracy": _shown(1 - (total - hits + alarms) / len(truth)),
            }
        )
    return rows
