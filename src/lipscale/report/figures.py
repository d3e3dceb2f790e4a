"""The figures of a report, each a function from runs to a figure and the caption that says what it shows."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from lipscale.report.ranking import ranking_curves
from lipscale.report.record import Answers, RunRecord
from lipscale.report.reliability import reliability_grid, with_answers
from lipscale.report.theme import BAD, FAINT, GOOD, INK, Drawn, colour, style
from lipscale.report.verdict import ATTACK_NAMES, percent, proven_and_attacked
from lipscale.training.epoch import counted

PART_COLOURS = {"relaxation": BAD, "contraction": GOOD, "Phase II": colour(2), "fixed L": GOOD}
ATTACK_COLOURS = {"pgd": BAD, "autoattack": colour(3)}
MARKERS = {"pgd": "o", "autoattack": "s"}
SURE = 0.9  # the confidence that the caption is about, and at which the slider starts


def draw_all(runs: Sequence[RunRecord]) -> list[Drawn]:
    """Every figure that these runs have the records for."""
    usual = (certified_accuracies, selective_answers, reliability_diagrams, dynamics, ranking_curves)
    drawn = [figure_of(runs) for figure_of in usual]
    return [figure for figure in drawn if figure is not None]


def dynamics(runs: Sequence[RunRecord]) -> Drawn | None:
    """L and T* over the epochs of both phases, with the two regimes of Phase I (Fig. 2 of the paper)."""
    runs = [run for run in runs if run.history and run.metrics.is_certified]  # an unconstrained one has no L
    if not runs:
        return None
    with style():
        figure = Figure(figsize=(5.2, 4.6))
        above, below = figure.subplots(2, 1, sharex=True)
        for run in runs:
            several, constants, temperatures = len(runs) > 1, run.constants, finite_temperatures(run)
            if several:
                above.plot(constants, color=colour(run.index), label=label(run))
            for name, start, stop in [] if several else _spans(run):
                look = {"color": PART_COLOURS[name], "marker": "o" if start == stop else None}
                above.plot(range(start, stop + 1), constants[start : stop + 1], label=name, **look)
                for axes in (above, below):
                    axes.axvspan(start, stop, color=look["color"], alpha=0.07, linewidth=0)
            if temperatures:
                below.plot(*zip(*temperatures, strict=True), color=colour(run.index) if several else INK)
        below.axhline(1, color=FAINT, linewidth=1, linestyle="--")
        above.set_ylabel("Lipschitz constant L")
        below.set(ylabel="temperature T*", xlabel="epoch")
        log_axis(above, "y", [constant for run in runs for constant in run.constants])
        log_axis(below, "y", [1.0, *(t for run in runs for _, t in finite_temperatures(run))])
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
        above.legend()
    return Drawn("dynamics", "L and T* during training", figure, [describe_dynamics(run) for run in runs])


def finite_temperatures(run: RunRecord) -> list[tuple[int, float]]:
    """T* by epoch, where it was measured and is neither 0 nor infinite."""
    measured = [(number, epoch.temperature) for number, epoch in enumerate(run.history, 1)]
    return [(number, t) for number, t in measured if t is not None and 0 < t < math.inf]


def relaxation_end(run: RunRecord) -> int:
    """The epoch of Phase I at which L is largest: before it L relaxes, after it L contracts."""
    first = run.constants[1 : 1 + len(run.phase_one)]
    return 1 + first.index(max(first)) if first else 0


def _spans(run: RunRecord) -> list[tuple[str, int, int]]:
    """The parts of a training: name, first and last epoch; each begins where the one before ends."""
    total, first, peak = len(run.history), len(run.phase_one), relaxation_end(run)
    if run.settings.method != "list":
        return [("fixed L", 0, total)]
    spans = [("relaxation", 0, peak), ("contraction", peak, first), ("Phase II", first, total)]
    return [(name, start, stop) for name, start, stop in spans if stop > start]


def describe_dynamics(run: RunRecord) -> str:
    """How L and T* went, in words."""
    constants, first, peak = run.constants, run.phase_one, relaxation_end(run)
    if run.settings.method != "list":
        return f"{run.name}: L stays fixed at {constants[-1]:.4g} for {counted(len(run.history), 'epoch')}."
    text = f"{run.name}: L starts at {constants[0]:.4g} and relaxes to {constants[peak]:.4g} by epoch {peak}"
    if peak < len(first):
        text += f", then contracts to {constants[len(first)]:.4g} by epoch {len(first)}, the last of Phase I"
    if (temperature := first[-1].temperature) is not None:
        text += f", where T* is {temperature:.4f}"
    text += "."
    if unbounded := sum(epoch.temperature in (0, math.inf) for epoch in first):
        text += f" In {counted(unbounded, 'epoch')} T* was 0 or infinite, and is not drawn."
    second = len(run.history) - len(first)
    return f"{text} Phase II has {counted(second, 'epoch')} with L frozen." if second else text


def reliability_diagrams(runs: Sequence[RunRecord]) -> Drawn | None:
    """Accuracy against confidence: one diagram, or a grid over runs."""
    known = [run for run, _ in with_answers(runs)]
    if not known:
        return None
    figure, caption = reliability_grid(known, [run.name for run in known] if len(known) > 1 else [""], columns=3)
    return Drawn("reliability", "Reliability diagram", figure, caption)


def certified_accuracies(runs: Sequence[RunRecord]) -> Drawn | None:
    """Certified accuracy over epsilon, and above it what attacks have left."""
    known = [(run, answers) for run, answers in with_answers(runs) if run.metrics.is_certified or run.robustness]
    if not known:
        return None
    with style():
        figure = Figure(figsize=(5.2, 3.6))
        axes = figure.subplots()
        for run, answers in known:
            name = label(run) if len(known) > 1 else "certified (proven)"
            if run.metrics.is_certified:
                axes.step(*answers.certified_curve(), where="pre", color=colour(run.index), label=name)
            elif len(known) > 1:
                axes.plot([], [], color=colour(run.index), label=f"{name} (no certificate)")
            _draw_attacks(axes, run, colour(run.index) if len(known) > 1 else None)
        units = {run.unit for run, _ in known}
        unit = units.pop() if len(units) == 1 else "each run in its own unit"
        axes.set(xlabel=f"epsilon (l2, {unit})", ylabel="accuracy", ylim=(0, 1.04))
        attacked = [float(eps) for run, _ in known for result in run.robustness.values() for eps in result.at]
        axes.set_xlim(0, round_up(max([answers.largest for _, answers in known] + attacked)))
        named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # each kind of attack once
        axes.legend(named.values(), named.keys())
    said = {run.name: proven_and_attacked(run.metrics, run.unit, run.robustness) for run, _ in known}
    caption = [f"{name}: {' '.join(sentences)}" for name, sentences in said.items()]
    return Drawn("certified", "How far is it safe? Certified accuracy and attacks", figure, caption)


def round_up(value: float) -> float:
    """The next number that a thousand steps divide into round ones: 0.808 -> 1, 13 -> 20; 1 where nothing is proven."""
    size = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * size for step in (1, 1.25, 2, 2.5, 5, 10) if step * size >= value)


def _draw_attacks(axes: Axes, run: RunRecord, shade: str | None) -> None:
    """What each attack left, with its interval, and hollow what is certified on the same samples."""
    for kind, result in run.robustness.items():
        rows = result.at.values()
        epsilons, left = [float(eps) for eps in result.at], [row.robust_accuracy for row in rows]
        errors = [[row.robust_accuracy - row.interval[0] for row in rows],
                  [row.interval[1] - row.robust_accuracy for row in rows]]  # fmt: skip
        look: dict[str, Any] = {"color": shade or ATTACK_COLOURS[kind], "markersize": 5}
        named = f"left by {ATTACK_NAMES[kind]} on a subset, 95 %"
        axes.errorbar(epsilons, left, yerr=errors, fmt=MARKERS[kind], capsize=3, linewidth=1, label=named, **look)
        # the curve is of all test samples: what an attack leaves is to be held against its subset
        if run.metrics.is_certified:
            proven = [row.certified_accuracy for row in rows]
            axes.plot(epsilons, proven, MARKERS[kind], mfc="none", label="certified on that subset", **look)


def selective_answers(runs: Sequence[RunRecord]) -> Drawn | None:
    """What is right among the answers that are sure enough, and how many those are, over the threshold."""
    known = with_answers(runs)
    if not known:
        return None
    caption = []
    with style():
        figure = Figure(figsize=(5.2, 3.6))
        axes = figure.subplots()
        for run, answers in known:
            threshold, coverage, accuracy = answers.selective_curves()
            name, shade = label(run) if len(known) > 1 else "", colour(run.index)
            axes.step(threshold, accuracy, where="pre", color=shade, label=f"{name} right among the answers".strip())
            axes.step(threshold, coverage, where="pre", color=shade, linestyle="--", label="" if name else "answered")
            caption.append(f"{run.name}: {_sure_and_right(answers)}")
        axes.set(xlabel="confidence threshold", ylabel="share", xlim=(0, 1), ylim=(0, 1.04))
        axes.legend(loc="lower left")
    caption.append("Solid: how many of the answers are right; dashed: how many samples get one.")
    return Drawn("confidence", "When should it stay silent?", figure, caption)


def _sure_and_right(answers: Answers) -> str:
    sure = answers.confidence >= SURE
    text = f"{percent(float(sure.double().mean()))} of the test samples get a confidence of at least {100 * SURE:g} %"
    right = f", and {percent(float(answers.right[sure].double().mean()))} of those are right" if sure.any() else ""
    return f"{text}{right}."


def label(run: RunRecord) -> str:
    """A run's name for a legend; matplotlib would hide one that begins with an underscore."""
    return run.name if not run.name.startswith("_") else f"\u200b{run.name}"


def log_axis(axes: Axes, name: Literal["x", "y"], values: Sequence[float]) -> None:
    """A logarithmic axis around positive values, with plain numbers: 1, 10, 100, or a few where it spans little."""
    low, high = 0.9 * min(values), 1.1 * max(values)
    axis = axes.yaxis if name == "y" else axes.xaxis
    axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    if high / low < 50:
        axis.set_minor_locator(NullLocator())
        axis.set_major_locator(MaxNLocator(5) if high / low < 4 else LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
