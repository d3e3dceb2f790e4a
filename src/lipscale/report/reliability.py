"""Reliability diagrams: accuracy against confidence, with the band in which a calibrated model would lie."""

import math
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lipscale.metrics import Bins, Floor, ece_floor, reliability
from lipscale.report.record import Answers, RunRecord
from lipscale.report.theme import BAD, FAINT, GOOD, INK, style
from lipscale.report.verdict import percent


def with_answers(runs: Sequence[RunRecord]) -> list[tuple[RunRecord, Answers]]:
    """The runs whose test predictions are there, with them."""
    return [(run, run.answers) for run in runs if run.answers is not None]


def reliability_grid(runs: Sequence[RunRecord], titles: Sequence[str], *, columns: int) -> tuple[Figure, list[str]]:
    """A diagram with its histogram of confidence for each run, all on the same axes, and the caption."""
    caption = []
    columns = min(columns, len(runs))
    rows = math.ceil(len(runs) / columns)
    width = {1: 4.6, 2: 6.2}.get(columns, 8.0)
    with style():
        figure = Figure(figsize=(width, 4.8 if len(runs) == 1 else rows * (1.3 * width / columns + 0.3) + 0.4))
        grid = figure.subplots(2 * rows, columns, sharex=True, sharey="row", squeeze=False, height_ratios=(4, 1) * rows)
        for place, (run, answers) in enumerate(with_answers(runs)):
            row, column = divmod(place, columns)
            upper, lower = grid[2 * row : 2 * row + 2, column]
            cells = reliability(answers.logits, answers.labels, answers.bins)
            floor = ece_floor(answers.logits, answers.labels, answers.bins)
            draw_reliability(upper, cells, floor)
            draw_confidences(lower, cells)
            upper.set_title(textwrap.fill(titles[place], int(11 * width / columns)), fontsize=9)
            for axes in (upper, lower):
                axes.label_outer(remove_inner_ticks=False)
            if place + columns >= len(runs):  # the lowest of its column
                lower.set_xlabel("confidence")
                lower.tick_params(labelbottom=True)
            caption.append(_describe(run, cells, floor))
        for unused in range(len(runs), rows * columns):
            for axes in grid[2 * (unused // columns) :, unused % columns]:
                axes.set_axis_off()
        handles = [handle for axes in grid[:2, 0] for handle in axes.get_legend_handles_labels()[0]]
        figure.legend(
            handles=handles, loc="outside upper center", ncols=5 if columns > 2 else 2, columnspacing=1.2,
            handlelength=1.5,
        )  # fmt: skip
    caption.append(
        "Bars are accuracy, hatched is the gap to confidence, whiskers hold 95 % of a calibrated model's accuracy."
    )
    return figure, caption


def draw_reliability(axes: Axes, cells: Bins, floor: Floor) -> None:
    """Bars of accuracy, the gap to confidence, and the band in which a calibrated model's accuracy would lie."""
    filled = cells.count > 0
    width = 1 / len(cells.count)
    left = (filled.nonzero().squeeze(1) * width).numpy()
    accuracy, confidence, low, high = (
        values[filled].numpy() for values in (cells.accuracy, cells.mean_confidence, floor.bin_lower, floor.bin_upper)
    )
    axes.bar(left, accuracy, width, align="edge", color=GOOD, alpha=0.8, linewidth=0, label="accuracy")
    axes.bar(
        left, confidence - accuracy, width, bottom=accuracy, align="edge", facecolor="none", edgecolor=BAD,
        hatch="////", linewidth=0.8, label="gap to confidence",
    )  # fmt: skip
    axes.errorbar(
        left + width / 2, (low + high) / 2, yerr=(high - low) / 2, fmt="none", ecolor=INK, elinewidth=1, capsize=3,
        label="a calibrated model, 95 %",
    )  # fmt: skip
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle="--", zorder=4)
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")


def draw_confidences(axes: Axes, cells: Bins) -> None:
    """The histogram of confidence, with its mean and the accuracy."""
    bins, total = len(cells.count), float(cells.count.sum())
    shares = (cells.count / total).tolist()
    axes.bar([m / bins for m in range(bins)], shares, 1 / bins, align="edge", color=FAINT, linewidth=0)
    axes.axvline(float(cells.confidence.sum()) / total, color=BAD, label="mean confidence")
    axes.axvline(float(cells.correct.sum()) / total, color=GOOD, linestyle="--", label="overall accuracy")
    axes.set(xlim=(0, 1), xlabel="confidence", ylabel="share")


def _describe(run: RunRecord, cells: Bins, floor: Floor) -> str:
    filled = cells.count > 0
    outside = filled & ((cells.accuracy < floor.bin_lower) | (cells.accuracy > floor.bin_upper))
    mean = float(cells.confidence.sum() / cells.count.sum())
    return (
        f"{run.name}: mean confidence {percent(mean)}, accuracy {percent(run.metrics.accuracy)}, ECE "
        f"{run.metrics.ece:.4f}. {int(outside.sum())} of {int(filled.sum())} bins with samples lie outside the band "
        f"of a calibrated model (one in twenty is expected to)."
    )
