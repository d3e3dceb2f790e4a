"""The paper's figures from finished runs; where runs are missing, a figure is drawn from the others or left out."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from torch import Tensor

from lipscale.experiments.fronts import LIST_COLOUR, front, pareto
from lipscale.experiments.profiles import Profile
from lipscale.experiments.recipes import constants_figure, fixed, lipschitz_scaling, starts_figure
from lipscale.experiments.results import Result, Results
from lipscale.metrics import ece, ece_floor, esce
from lipscale.report.figures import Drawn, finite_temperatures, log_axis, relaxation_end, reliability_grid
from lipscale.report.theme import BAD, BAND, FAINT, GOOD, INK, colour, style
from lipscale.report.verdict import percent

__all__ = ["draw_figures", "dynamics", "fixed_reliability", "front", "list_reliability", "pareto", "scaling"]

STEPS = 8  # values of 1/T in every factor of two
ZOOM = 1.25  # the farthest from 1 that the inset shows
LATE = 0.5  # the inset shows T* from this share of the epochs on


def draw_figures(profile: Profile, results: Results) -> list[Drawn]:
    """Every figure of the paper that these results have runs for."""
    by_set = (scaling, dynamics, pareto, fixed_reliability)
    drawn = [draw(profile, results, data) for data in profile.pair for draw in by_set]
    return [figure for figure in (*drawn, list_reliability(profile, results)) if figure is not None]


# --- ECE over L and over 1/T (Fig. 1 and its twin in App. C) ---


def scaling(profile: Profile, results: Results, data: str) -> Drawn | None:
    """Test ECE (a) over fixed L and (b) of the 1-Lipschitz network over 1/T, on one vertical axis."""
    rows = zip(profile.constants, constants_figure(profile, data), strict=True)
    trained = [(float(constant), seeds) for constant, row in rows if (seeds := results.of(row))]
    if not trained:
        return None
    found, unit = results.of(lipschitz_scaling(profile, 0.0, data)), results.of(fixed(profile, 1.0, data))
    with style():
        figure = Figure(figsize=(8, 4.2))
        panels = figure.subplots(1, 2 if unit else 1, sharey=True, squeeze=False)[0]
        words = _over_constants(panels[0], trained, found)
        if unit:
            words += _over_temperatures(panels[1], unit)
        named = {
            label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3, fontsize=8)
    return Drawn(f"scaling-{_short(profile, data)}", f"ECE over L and over 1/T on {data}", figure, words)


def _over_constants(axes: Axes, trained: Sequence[tuple[float, list[Result]]], found: Sequence[Result]) -> list[str]:
    constants = [constant for constant, _ in trained]
    errors, signed, bands = (
        [[result.metrics[key] for result in seeds] for _, seeds in trained] for key in ("ece", "esce", "ece_band")
    )
    _draw_errors(axes, constants, errors, signed, marker="o")
    _draw_band(axes, constants, bands)
    stars = [(result.constant, result.metrics["ece"]) for result in found]
    log_axis(axes, "x", [*constants, *(constant for constant, _ in stars)])
    axes.set_xticks(constants, [f"{constant:g}" for constant in constants])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(title="(a) trained at a fixed L", xlabel="L", ylabel="test ECE (and ESCE)")
    first, last = 0, len(constants) - 1
    best = min(range(len(constants)), key=lambda i: fmean(errors[i]))
    low, high = (fmean(band[end] for band in bands[best]) for end in (0, 1))
    words = [
        f"(a) Over fixed L the test ECE is {fmean(errors[first]):.4f} at L = {constants[first]:g}, "
        f"{fmean(errors[best]):.4f} at L = {constants[best]:g}, where it is smallest (a calibrated model would show "
        f"{low:.4f} to {high:.4f}), and {fmean(errors[last]):.4f} at L = {constants[last]:g}; ESCE goes from "
        f"{fmean(signed[first]):+.4f} to {fmean(signed[last]):+.4f}. {_seeds([seeds for _, seeds in trained])}"
    ]
    if stars:
        constant, error = (fmean(values) for values in zip(*stars, strict=True))
        axes.plot(*zip(*stars, strict=True), "*", markersize=12, color=LIST_COLOUR, zorder=5, label="LiST at its L*")
        words.append(f"LiST finds L* = {constant:.4g} with a test ECE of {error:.4f}. {_seeds([found])}")
    return words


def _over_temperatures(axes: Axes, unit: Sequence[Result]) -> list[str]:
    scales = [1 / t for result in unit if 0 < (t := float(result.metrics["temperature"])) < math.inf]
    grid = scale_grid(min([1.0, *scales]) / 2, max([1.0, *scales]) * 8)

    def at(scale: float, result: Result) -> tuple[Tensor, Tensor, int]:
        return result.answers.logits.double() * scale, result.answers.labels, result.answers.bins

    errors, signed = ([[error(*at(scale, result)) for result in unit] for scale in grid] for error in (ece, esce))
    # the band is simulated, which takes long, but it is smooth, and hardly differs between seeds
    few = [*grid[: -1 : STEPS // 2], grid[-1]]
    floors = [ece_floor(*at(scale, unit[0])) for scale in few]
    bands = [[(floor.lower, floor.upper)] for floor in floors]
    _draw_errors(axes, grid, errors, signed)
    _draw_band(axes, few, bands)
    log_axis(axes, "x", grid)
    axes.set(title="(b) 1-Lipschitz, scaled by 1/T", xlabel="1/T")
    means = [fmean(values) for values in errors]
    best = min(range(len(grid)), key=means.__getitem__)
    axes.plot(grid[best], means[best], "D", color=BAD, markersize=6, zorder=5, label="smallest ECE over 1/T")
    words = (
        f"(b) The network trained at L = 1 has a test ECE of {means[grid.index(1.0)]:.4f} as it is; with logits times "
        f"1/T it is smallest at 1/T = {grid[best]:.3g} with {means[best]:.4f}"
    )
    if scales:
        axes.axvline(fmean(scales), color=BAD, linewidth=1, linestyle=":", zorder=1, label="1/T* (smallest NLL)")
        words += f", and the test set's T* gives 1/T* = {fmean(scales):.3g}"
    return [f"{words}. {_seeds([unit])}"]


def scale_grid(low: float, high: float) -> list[float]:
    """Values of 1/T, evenly spread on a logarithmic axis, from at most `low` to at least `high`; 1 is one of them."""
    return [2 ** (k / STEPS) for k in range(math.floor(STEPS * math.log2(low)), math.ceil(STEPS * math.log2(high)) + 1)]


def _draw_errors(
    axes: Axes,
    places: Sequence[float],
    errors: Sequence[Sequence[float]],
    signed: Sequence[Sequence[float]],
    *,
    marker: str = "",
) -> None:
    """ECE and, fainter, ESCE: at each place the mean and the range over seeds."""
    for values, name, shade, line in ((signed, "ESCE, signed", FAINT, "--"), (errors, "ECE", GOOD, "-")):
        several = max(map(len, values)) > 1
        label = f"{name}: mean and range of seeds" if several else name
        axes.plot(places, list(map(fmean, values)), line, color=shade, marker=marker, markersize=4, label=label)
        if several:
            low, high = list(map(min, values)), list(map(max, values))
            axes.fill_between(places, low, high, color=shade, alpha=0.3, linewidth=0)


def _draw_band(axes: Axes, places: Sequence[float], bands: Sequence[Sequence[Sequence[float]]]) -> None:
    """Between which values the ECE of a calibrated model lies, as a mean over seeds; and the zero of ESCE."""
    low, high = ([fmean(band[end] for band in seeds) for seeds in bands] for end in (0, 1))
    axes.fill_between(places, low, high, color=BAND, linewidth=0, zorder=1, label="ECE of a calibrated model, 95 %")
    axes.axhline(0, color=INK, linewidth=0.8, zorder=1)


# --- L and T* over the epochs of Phase I (Fig. 2) ---


def dynamics(profile: Profile, results: Results, data: str) -> Drawn | None:
    """L and T* in Phase I from several L0; the first seed is drawn strongly, the others faintly."""
    rows = zip(profile.starts, starts_figure(profile, data), strict=True)
    started = [(start, seeds) for start, row in rows if (seeds := results.of(row))]
    if not started:
        return None
    with style():
        figure = Figure(figsize=(8, 4.2))
        left, right = figure.subplots(1, 2)
        inset = right.inset_axes((0.42, 0.09, 0.56, 0.4))
        all_l: list[float] = []
        all_t: list[tuple[int, float]] = []
        for start, seeds in started:
            shade = colour(profile.starts.index(start))
            for i, result in enumerate(seeds):
                constants = [start, *(line["lipschitz"] for line in result.facts.history if line["phase"] == 1)]
                temperatures = [(e, t) for e, t in finite_temperatures(result.facts) if e < len(constants)]
                look = {"color": shade, "alpha": 0.4 if i else 1.0, "linewidth": 1.0 if i else 1.6}
                left.plot(constants, label=None if i else f"L0 = {start:g}", **look)
                left.plot(len(constants) - 1, constants[-1], "o", markersize=5, **look)
                for axes in (right, inset):
                    axes.plot([e for e, _ in temperatures], [t for _, t in temperatures], **look)
                all_l += constants
                all_t += temperatures
        _frame_temperatures(right, inset, all_t)
        log_axis(left, "y", all_l)
        left.set(title="(a) Lipschitz constant", ylabel="L")
        right.set(title="(b) temperature", ylabel="T*")
        for axes in (left, right):
            axes.set_xlabel("epoch of Phase I")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside lower center", ncols=len(started), fontsize=8)
    words = [_describe_start(start, seeds) for start, seeds in started]
    for seed in sorted({result.settings.seed for _, seeds in started for result in seeds}):
        ends = [result.constant for _, seeds in started for result in seeds if result.settings.seed == seed]
        words.append(
            f"With seed {seed} L ends at {', '.join(f'{end:.4g}' for end in ends)}: a relative spread, largest minus "
            f"smallest over the mean, of {percent(relative_spread(ends))}."
        )
    return Drawn(f"dynamics-{_short(profile, data)}", f"L and T* in Phase I on {data}", figure, words)


def relative_spread(values: Sequence[float]) -> float:
    """(max - min) / mean."""
    return (max(values) - min(values)) / fmean(values)


def _frame_temperatures(axes: Axes, inset: Axes, temperatures: Sequence[tuple[int, float]]) -> None:
    """Limits of the panel and its inset: the inset shows the end, and lies below the curves, not upon them."""
    last = max((epoch for epoch, _ in temperatures), default=1)
    late = [1.0, *(t for epoch, t in temperatures if epoch >= LATE * last)]
    right_half = [1.0, *(t for epoch, t in temperatures if epoch >= 0.35 * last)]
    log_axis(axes, "y", [1.0, *(t for _, t in temperatures)])
    low, high = map(math.log, axes.get_ylim())
    # the lowest curve above the inset has to be at 55 % of the height or higher
    lowest = math.log(min(right_half))
    axes.set_ylim(bottom=math.exp(min(low, (lowest - 0.55 * high) / 0.45)))
    margin = max(0.02, 0.15 * (max(late) - min(late)))
    inset.set(
        xlim=(math.ceil(LATE * last), last),
        ylim=(max(min(late) - margin, 1 / ZOOM), min(max(late) + margin, ZOOM)),  # what lies beyond is seen outside
    )
    inset.set_title("near T* = 1", fontsize=8, pad=3)
    inset.tick_params(labelsize=7)
    inset.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    inset.yaxis.set_major_locator(MaxNLocator(4))
    for each in (axes, inset):
        each.axhline(1, color=FAINT, linewidth=1, linestyle="--", zorder=1)


def _describe_start(start: float, seeds: Sequence[Result]) -> str:
    first = seeds[0]
    history = [line for line in first.facts.history if line["phase"] == 1]
    peak = relaxation_end(first.facts)
    largest, temperature = history[peak - 1]["lipschitz"], history[-1]["temperature"]
    return (
        f"From L0 = {start:g} (seed {first.settings.seed}) L is largest with {largest:.4g} after epoch {peak} and ends "
        f"at {first.constant:.4g} after epoch {len(history)}, where T* is {temperature:.4f}."
    )


# --- reliability diagrams (App. C) ---


def fixed_reliability(profile: Profile, results: Results, data: str) -> Drawn | None:
    """The diagrams over fixed L, of the first seed."""
    rows = zip(profile.constants, constants_figure(profile, data), strict=True)
    runs = [replace(seeds[0].facts, name=f"L = {constant:g}") for constant, row in rows if (seeds := results.of(row))]
    if not runs:
        return None
    titles = [f"{run.name}, ECE {run.metrics['ece']:.3f}" for run in runs]
    figure, words = reliability_grid(runs, titles, columns=4)
    name, title = f"reliability-fixed-{_short(profile, data)}", f"Reliability over fixed L on {data}"
    return Drawn(name, title, figure, words)


def list_reliability(profile: Profile, results: Results) -> Drawn | None:
    """LiST's diagram on each data set, of the first seed."""
    found = {data: results.of(lipschitz_scaling(profile, 0.0, data)) for data in profile.sets}
    runs = [replace(seeds[0].facts, name=data) for data, seeds in found.items() if seeds]
    if not runs:
        return None
    titles = [f"{run.name}, ECE {run.metrics['ece']:.3f}" for run in runs]
    figure, words = reliability_grid(runs, titles, columns=3)
    return Drawn("reliability-list", "Reliability of LiST on each data set", figure, words)


def _short(profile: Profile, data: str) -> str:
    """A set's name for files."""
    return str(profile.sets[data]["data"]).rsplit("/", 1)[-1]


def _seeds(rows: Sequence[Sequence[Result]]) -> str:
    """How many runs the numbers are means of."""
    counts = sorted({len(seeds) for seeds in rows})
    if counts == [1]:
        return "One seed each."
    return f"Means of {' to '.join(map(str, [counts[0], counts[-1]][: len(counts)]))} seeds."
