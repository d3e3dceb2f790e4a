"""The classes of a run, one by one: a table, what is confused with what, and for two classes what a threshold costs."""

from lipscale.runs.evaluation import Metrics

NOTHING = "-"  # of a class without a sample, or without an answer


def class_rows(metrics: Metrics, *, most: int | None = None, brief: bool = False) -> list[dict[str, str]]:
    """A row for each class, by column; `most` keeps those with the smallest recall, `brief` leaves some columns out."""
    order: list[int] = list(range(len(metrics.recall)))
    if most is not None and len(order) > most:
        occurring = [c for c in order if metrics.recall[c] is not None]
        order = sorted(occurring, key=lambda c: metrics.recall[c] or 0.0)[:most]
    return [_row(metrics, c, brief=brief) for c in order]


def _row(metrics: Metrics, c: int, *, brief: bool) -> dict[str, str]:
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
        "mean probability minus share": _shown(metrics.gap_by_class[c], "+.4f"),
    }
    return row if brief else row | calibration


def _shown(share: float | None, form: str = ".4f") -> str:
    return NOTHING if share is None else f"{share:{form}}"
