"""The figures, each a function from runs to a matplotlib figure and the words that say what it shows."""

import math
import textwrap
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from lipscale.certificates import certified_accuracy_curve
from lipscale.metrics import Bins, Floor, ece_floor, reliability
from lipscale.report.record import Answers, Facts
from lipscale.report.theme import BAD, FAINT, GOOD, INK, colour, style
from lipscale.report.verdict import ATTACK_NAMES, has_certificate, percent

CURVE_POINTS = 400  # more steps than a reader can tell apart
PART_COLOURS = {"relaxation": BAD, "contraction": GOOD, "Phase II": colour(2), "fixed L": GOOD}
ATTACK_COLOURS = {"pgd": BAD, "autoattack": colour(3)}
MARKERS = {"pgd": "o", "autoattack": "s"}


class Drawn(NamedTuple):
    """A figure, its title, and its text alternative."""

    name: str
    title: str
    figure: Figure
    words: list[str]


def draw_all(runs: Sequence[Facts]) -> list[Drawn]:
    """Every figure that these runs have the facts for."""
    drawn = [dynamics(runs), reliability_diagrams(runs), certified_curve(runs), confidence_histogram(runs)]
    return [figure for figure in drawn if figure is not None]


def dynamics(runs: Sequence[Facts]) -> Drawn | None:
    """L and T* over the epochs of both phases, with the two regimes of Phase I (Fig. 2 of the paper)."""
    runs = [run for run in runs if run.history and has_certificate(run.metrics)]  # an unconstrained one has no L
    if not runs:
        return None
    with style():
        figure = Figure(figsize=(5.2, 4.6))
        above, below = figure.subplots(2, 1, sharex=True)
        words: list[str] = []
        all_l: list[float] = []
        all_t = [1.0]
        for run in runs:
            # epoch 0 is where L starts
            constants = [run.settings.lipschitz, *(line["lipschitz"] for line in run.history)]
            epochs = range(len(constants))
            if len(runs) > 1:
                above.plot(epochs, constants, color=colour(run.place), label=label(run))
            else:
                for name, start, stop in _spans(run):
                    part = PART_COLOURS[name]
                    dot = "o" if start == stop else None
                    above.plot(
                        epochs[start : stop + 1], constants[start : stop + 1], marker=dot, color=part, label=name
                    )
                    for axes in (above, below):
                        axes.axvspan(start, stop, color=part, alpha=0.07, linewidth=0)
            temperatures = finite_temperatures(run)
            if temperatures:
                below.plot(*zip(*temperatures, strict=True), color=colour(run.place) if len(runs) > 1 else INK)
            all_l += constants
            all_t += [t for _, t in temperatures]
            words.append(_describe_dynamics(run, constants))
        below.axhline(1, color=FAINT, linewidth=1, linestyle="--")
        for axes, name, values in ((above, "Lipschitz constant L", all_l), (below, "temperature T*", all_t)):
            axes.set_ylabel(name)
            log_axis(axes, "y", values)
        below.set_xlabel("epoch")
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
        above.legend(fontsize=8)
    return Drawn("dynamics", "L and T* during training", figure, words)


def finite_temperatures(run: Facts) -> list[tuple[int, float]]:
    """T* by epoch, where it was measured and is neither 0 nor infinite."""
    measured = [(epoch, line["temperature"]) for epoch, line in enumerate(run.history, 1)]
    return [(epoch, t) for epoch, t in measured if t is not None and 0 < t < math.inf]


def relaxation_end(run: Facts) -> int:
    """The epoch of Phase I at which L is largest: before it L relaxes, after it L contracts."""
    first = [line["lipschitz"] for line in run.history if line["phase"] == 1]
    return 1 + max(range(len(first)), key=first.__getitem__) if first else 0


def _spans(run: Facts) -> list[tuple[str, int, int]]:
    """The parts of a training: name, first and last epoch; each begins where the one before ends."""
    total = len(run.history)
    first = sum(line["phase"] == 1 for line in run.history)
    if run.settings.method != "list" or not first:
        return [("fixed L", 0, total)]
    peak = relaxation_end(run)
    spans = [("relaxation", 0, peak), ("contraction", peak, first), ("Phase II", first, total)]
    return [(name, start, stop) for name, start, stop in spans if stop > start]


def _describe_dynamics(run: Facts, constants: list[float]) -> str:
    if run.settings.method != "list":
        return f"{run.name}: L stays fixed at {constants[-1]:.4g} for {len(run.history)} epochs."
    first = [line for line in run.history if line["phase"] == 1]
    peak = relaxation_end(run)
    words = f"{run.name}: L starts at {run.settings.lipschitz:.4g} and relaxes to {constants[peak]:.4g} by epoch {peak}"
    if peak < len(first):
        words += f", then contracts to {first[-1]['lipschitz']:.4g} by epoch {len(first)}, the last of Phase I"
    words += f", where T* is {first[-1]['temperature']:.4f}."
    unbounded = sum(line["temperature"] in (0, math.inf) for line in first)
    if unbounded:
        words += f" In {unbounded} epochs T* was 0 or infinite, and is not drawn."
    second = len(run.history) - len(first)
    return f"{words} Phase II has {second} epochs with L frozen." if second else words


def reliability_diagrams(runs: Sequence[Facts]) -> Drawn | None:
    """Accuracy against confidence: one diagram, or a grid over runs."""
    known = [run for run in runs if run.answers is not None]
    if not known:
        return None
    figure, words = reliability_grid(known, [run.name for run in known] if len(known) > 1 else [""], columns=3)
    return Drawn("reliability", "Reliability diagram", figure, words)


def reliability_grid(runs: Sequence[Facts], titles: Sequence[str], *, columns: int) -> tuple[Figure, list[str]]:
    """A diagram with its histogram of confidence for each run, all on the same axes, and the words for them."""
    words = []
    columns = min(columns, len(runs))
    rows = math.ceil(len(runs) / columns)
    width = {1: 4.6, 2: 6.2}.get(columns, 8.0)
    with style():
        figure = Figure(figsize=(width, 4.8 if len(runs) == 1 else rows * (1.3 * width / columns + 0.3) + 0.4))
        grid = figure.subplots(2 * rows, columns, sharex=True, sharey="row", squeeze=False, height_ratios=(4, 1) * rows)
        for place, (run, answers) in enumerate(_with_answers(runs)):
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
            words.append(_describe_reliability(run, cells, floor))
        for unused in range(len(runs), rows * columns):
            for axes in grid[2 * (unused // columns) :, unused % columns]:
                axes.set_axis_off()
        named = [axes.get_legend_handles_labels() for axes in (grid[0, 0], grid[1, 0])]
        handles, labels = named[0][0] + named[1][0], named[0][1] + named[1][1]
        figure.legend(
            handles, labels, loc="outside upper center", ncols=5 if columns > 2 else 2, fontsize=8, columnspacing=1.2,
            handlelength=1.5,
        )  # fmt: skip
    words.append(
        "Bars are accuracy, hatched is the gap to confidence, whiskers hold 95 % of a calibrated model's accuracy."
    )
    return figure, words


def draw_reliability(axes: Axes, cells: Bins, floor: Floor) -> None:
    """Bars of accuracy, the gap to confidence, and the band in which a calibrated model's accuracy would lie."""
    bins, width = len(cells.count), 1 / len(cells.count)
    left = [m * width for m in range(bins)]
    accuracy, confidence = cells.accuracy.tolist(), cells.mean_confidence.tolist()
    low, high = floor.bin_lower.tolist(), floor.bin_upper.tolist()
    filled = [m for m in range(bins) if cells.count[m] > 0]
    for m in filled:
        named = m == filled[-1]
        axes.bar(
            left[m],
            accuracy[m],
            width,
            align="edge",
            color=GOOD,
            alpha=0.8,
            linewidth=0,
            label="accuracy" if named else None,
        )
        axes.bar(
            left[m], confidence[m] - accuracy[m], width, bottom=accuracy[m], align="edge", facecolor="none",
            edgecolor=BAD, hatch="////", linewidth=0.8, label="gap to confidence" if named else None,
        )  # fmt: skip
        axes.errorbar(
            left[m] + width / 2, (low[m] + high[m]) / 2, yerr=(high[m] - low[m]) / 2, color=INK, linewidth=1, capsize=3,
            label="a calibrated model, 95 %" if named else None,
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


def _describe_reliability(run: Facts, cells: Bins, floor: Floor) -> str:
    filled = cells.count > 0
    outside = filled & ((cells.accuracy < floor.bin_lower) | (cells.accuracy > floor.bin_upper))
    mean = float(cells.confidence.sum() / cells.count.sum())
    return (
        f"{run.name}: mean confidence {percent(mean)}, accuracy {percent(run.metrics['accuracy'])}, ECE "
        f"{run.metrics['ece']:.4f}. {int(outside.sum())} of {int(filled.sum())} bins with samples lie outside the band "
        f"of a calibrated model (one in twenty is expected to)."
    )


def label(run: Facts) -> str:
    """A run's name for a legend; matplotlib would hide one that begins with an underscore."""
    return run.name if not run.name.startswith("_") else f"\u200b{run.name}"


def _with_answers(runs: Sequence[Facts]) -> list[tuple[Facts, Answers]]:
    return [(run, run.answers) for run in runs if run.answers is not None]


def certified_curve(runs: Sequence[Facts]) -> Drawn | None:
    """Certified accuracy over epsilon, and above it what attacks have left."""
    known = [(run, answers) for run, answers in _with_answers(runs) if has_certificate(run.metrics) or run.robustness]
    if not known:
        return None
    with style():
        figure = Figure(figsize=(5.2, 3.6))
        axes = figure.subplots()
        words, used = [], set()
        for run, answers in known:
            proven_any = has_certificate(run.metrics)
            name = label(run) if len(known) > 1 else "certified (proven)"
            if proven_any:
                axes.step(*curve(answers), where="pre", color=colour(run.place), label=name)
            elif len(known) > 1:
                axes.plot([], [], color=colour(run.place), label=f"{name} (no certificate)")
            for kind, result in run.robustness.items():
                points = [(float(e), row["robust_accuracy"], row["interval"]) for e, row in result["at"].items()]
                x, y, ends = zip(*points, strict=True)
                errors = [[v - low for v, (low, _) in zip(y, ends, strict=True)],
                          [high - v for v, (_, high) in zip(y, ends, strict=True)]]  # fmt: skip
                shade = colour(run.place) if len(known) > 1 else ATTACK_COLOURS[kind]
                kinds = (f"left by {ATTACK_NAMES[kind]} on a subset, 95 %", "certified on that subset")
                left, proven = (None, None) if kind in used else kinds
                used.add(kind)
                axes.errorbar(
                    x, y, yerr=errors, fmt=MARKERS[kind], color=shade, markersize=5, capsize=3, linewidth=1, label=left
                )
                # the curve is of all test samples: what an attack leaves is to be held against its own subset
                certified = [row["certified_accuracy"] for row in result["at"].values()]
                if proven_any:
                    axes.plot(
                        x, certified, MARKERS[kind], markerfacecolor="none", color=shade, markersize=5, label=proven
                    )
            shares = ", ".join(f"{percent(v)} at {e}" for e, v in run.metrics["certified_accuracy"].items())
            said = f"certified accuracy is {shares}." if proven_any else "an unconstrained network has no certificate."
            attacks = [
                f" At {e} {ATTACK_NAMES[kind]} left {percent(row['robust_accuracy'])} of {row['samples']} samples "
                "correct"
                + (
                    f", and {percent(row['certified_accuracy'])} of the same samples are certified."
                    if proven_any
                    else "."
                )
                for kind, result in run.robustness.items()
                for e, row in result["at"].items()
            ]
            words.append(f"{run.name}: {said}{''.join(attacks)}")
        units = {run.unit for run, _ in known}
        unit = units.pop() if len(units) == 1 else "each run in its own unit"
        axes.set(xlabel=f"epsilon (l2, {unit})", ylabel="accuracy", ylim=(0, 1.04))
        axes.set_xlim(left=0)
        axes.legend(fontsize=8)
    return Drawn("certified", "Certified accuracy and attacks", figure, words)


def curve(answers: Answers) -> tuple[list[float], list[float]]:
    """Certified accuracy at up to CURVE_POINTS epsilons, from zero to the largest radius."""
    steps, shares = certified_accuracy_curve(answers.certified.clamp(max=1e6))
    if len(steps) == 0:
        return [0.0, 1.0], [0.0, 0.0]
    keep = torch.linspace(0, len(steps) - 1, min(CURVE_POINTS, len(steps))).round().long()
    end = float(steps[-1])
    return [0.0, *steps[keep].tolist(), end], [float(shares[0]), *shares[keep].tolist(), 0.0]


def confidence_histogram(runs: Sequence[Facts]) -> Drawn | None:
    """How often which confidence is given, right and wrong."""
    known = _with_answers(runs)
    if not known:
        return None
    with style():
        figure = Figure(figsize=(5.2, 3.2))
        axes = figure.subplots()
        words = []
        for run, answers in known:
            confidence, right = answers.confidence, answers.right
            parts = [confidence[right].tolist(), confidence[~right].tolist()]
            if len(known) == 1:
                # over one another, not stacked: a logarithmic axis would belittle what lies on top
                for values, shade, name in zip(parts, (GOOD, BAD), ("right", "wrong"), strict=True):
                    axes.hist(values, bins=25, range=(0, 1), histtype="stepfilled", color=shade, alpha=0.65, label=name)
            else:
                axes.hist(
                    confidence.tolist(),
                    bins=25,
                    range=(0, 1),
                    histtype="step",
                    color=colour(run.place),
                    label=label(run),
                )
            sure = confidence >= 0.9
            share = float(right[sure].double().mean()) if sure.any() else math.nan
            words.append(
                f"{run.name}: {percent(float(sure.double().mean()))} of the test samples get a confidence of at least "
                f"90 %" + (f", and {percent(share)} of those are right." if sure.any() else ".")
            )
        axes.set(xlabel="confidence", ylabel="test samples", xlim=(0, 1))
        log_axis(axes, "y", (0.8, axes.get_ylim()[1]))
        axes.legend(fontsize=8, loc="best")
    return Drawn("confidence", "Confidence histogram", figure, words)


def log_axis(axes: Axes, name: Literal["x", "y"], values: Sequence[float]) -> None:
    """A logarithmic axis around positive values, with plain numbers: 1, 10, 100, or a few where it spans little."""
    low, high = 0.9 * min(values), 1.1 * max(values)
    axis = axes.yaxis if name == "y" else axes.xaxis
    axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    if high / low < 50:
        axis.set_minor_locator(NullLocator())
        axis.set_major_locator(MaxNLocator(5) if high / low < 4 else LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
