"""Several classifiers in a table that ranks them: one a line, the best of each column marked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lipscale.metrics.verdict import percent, points
from lipscale.report.record import RunRecord
from lipscale.runs.headline import Headline, headline

LOWER_IS_BETTER = ("log-loss", "calibration error", "training time", "CPU time")
RANKED_BY = "log-loss"  # it pays for errors and for wrong confidence alike


class Mark(NamedTuple):
    """A cell: what is shown, and whether nothing in its column is better."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Entry:
    """A classifier: by column its value (none: it has no such thing) and how that is shown."""

    name: str
    cells: Mapping[str, tuple[float | None, str]]
    verdict: Headline
    index: int = 0  # decides its colour
    marks: dict[str, Mark] = field(default_factory=dict)


def ranked(entries: Sequence[Entry], *, comparable: bool = True) -> list[Entry]:
    """The entries from the best log-loss on, with the best of each column marked; else in their order, unmarked."""
    for name in entries[0].cells:
        best = _best([entry.cells[name][0] for entry in entries], name)
        for entry in entries:
            value, text = entry.cells[name]
            entry.marks[name] = Mark(text, comparable and value is not None and value == best)
    return sorted(entries, key=lambda entry: entry.cells[RANKED_BY][0] or 0.0) if comparable else list(entries)


def _best(values: Sequence[float | None], name: str) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return min(known) if name in LOWER_IS_BETTER else max(known)


def ranked_runs(runs: Sequence[RunRecord]) -> list[Entry]:
    """The runs of a report, ranked where they are of the same data."""
    return ranked([_entry(run, runs) for run in runs], comparable=len({run.settings.data for run in runs}) == 1)


def _entry(run: RunRecord, runs: Sequence[RunRecord]) -> Entry:
    metrics, known = run.metrics, [r.metrics.certified_accuracy for r in runs]
    shared = next((eps for eps in known[0] if all(eps in shares for shares in known)), "")
    proven = metrics.certified_accuracy[shared] if shared and metrics.is_certified else None
    limit = metrics.calibration_error_limits[1]
    cells: dict[str, tuple[float | None, str]] = {
        "accuracy": (metrics.accuracy, percent(metrics.accuracy)),
        "log-loss": (metrics.nll, f"{metrics.nll:.4f}"),
        # by its upper limit: few samples must not pass for a small error
        "calibration error": (limit, f"{points(metrics.calibration_error)}, at most {points(limit, unit=False)}"),
        f"certified accuracy at {shared}": (proven, "none" if proven is None else percent(proven)),
        "training time": (metrics.seconds, f"{metrics.seconds:.0f} s"),
    }
    return Entry(run.name, cells, headline(metrics), run.index)
