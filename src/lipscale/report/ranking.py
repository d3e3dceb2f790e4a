"""For two classes: the ROC and the precision-recall curve of the rarer one."""

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from lipscale.metrics import operating_points
from lipscale.report.classes import rarer
from lipscale.report.record import RunRecord, thinned
from lipscale.report.theme import FAINT, Drawn, colour, style


def ranking_curves(runs: Sequence[RunRecord]) -> Drawn | None:
    """Of the runs with two classes, both of which occur: what finding more of the rarer class costs."""
    known = [(run, curves) for run in runs if (curves := _curves(run)) is not None]
    if not known:
        return None
    with style():
        figure = Figure(figsize=(7.6, 3.6))
        roc, precision_recall = figure.subplots(1, 2)
        for run, (recall, alarms, precision) in known:
            name = f"{run.name}, AUC {run.metrics.auc:.3f}".lstrip("_")
            roc.step([0.0, *alarms], [0.0, *recall], where="post", color=colour(run.index), label=name)
            precision_recall.step([0.0, *recall], [precision[0], *precision], where="pre", color=colour(run.index))
            precision_recall.axhline(_share(run), color=colour(run.index), linewidth=1, linestyle="--")
        roc.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle="--")
        roc.set(xlabel="false alarms, as a share of the other class", ylabel="recall", xlim=(0, 1), ylim=(0, 1.02))
        precision_recall.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
        roc.legend(loc="lower right")
    return Drawn("ranking", "ROC and precision-recall curve", figure, [_describe(run) for run, _ in known])


def _curves(run: RunRecord) -> list[list[float]] | None:
    """Recall, the share of false alarms, and precision, from the highest threshold to the lowest."""
    if run.answers is None or len(run.metrics.classes) != 2 or run.metrics.auc is None:
        return None
    positive = rarer(run.metrics)
    truth = run.answers.labels == positive
    points = operating_points(torch.softmax(run.answers.logits.double(), 1)[:, positive], truth)
    new = torch.diff(points.hits, prepend=points.hits.new_zeros(1)) > 0  # in between only alarms are added
    new[-1] = True
    hits, alarms = points.hits[new], points.alarms[new]
    return thinned(hits / truth.sum(), alarms / (~truth).sum(), hits / (hits + alarms))


def _share(run: RunRecord) -> float:
    return run.metrics.counts[rarer(run.metrics)] / run.metrics.test_size


def _describe(run: RunRecord) -> str:
    positive = rarer(run.metrics)
    name, average = run.metrics.classes[positive], run.metrics.average_precision[positive]
    pairs = f"{100 * (run.metrics.auc or 0):.1f} % of pairs (AUC)"
    return (
        f"{run.name}: a sample of {name!r} gets a higher probability of it than another one in {pairs}. Average "
        f"precision {average or 0:.3f}; guessing would have {_share(run):.3f}, its share (dashed)."
    )
