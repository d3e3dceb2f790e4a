"""The paper's figures from finished runs; where runs are missing, a figure is drawn from the others or left out."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from torch import Tensor

from lipscale.experiments.fronts import LIST_COLOUR, pareto
from lipscale.experiments.intervals import relative_spread
from lipscale.experiments.profiles import Profile
from lipscale.experiments.recipes import constants_figure, fixed, lipschitz_scaling, starts_figure
from lipscale.experiments.results import Result, Results
from lipscale.metrics import ece, ece_floor, esce
from lipscale.report.figures import describe_dynamics, finite_temperatures, log_axis
from lipscale.report.reliability import reliability_grid
from lipscale.report.theme import BAD, BAND, FAINT, GOOD, INK, Drawn, colour, style
from lipscale.report.verdict import percent

STEPS = 8  # values of 1/T in every factor of two
ZOOM = 1.25  # the farthest from 1 that the inset shows
LATE = 0.5  # the inset shows T* from this share of the epochs on
Seeds = Sequence[Sequence[float]]  # at each place a value for each seed


def draw_figures(profile: Profile, results: Results) -> list[Drawn]:
    """Every figure of the paper that these results have runs for."""
    by_set = (scaling, dynamics, pareto, fixed_reliability)
    drawn = [draw(profile, results, data) for data in profile.pair for draw in by_set]
    return [figure for figure in (*drawn, list_reliability(profile, results)) if figure is not None]


def scaling(profile: Profile, results: Results, data: str) -> Drawn | None:
    """Test ECE (a) over fixed L and (b) of the 1-Lipschitz network over 1/T, on one vertical axis."""
    rows = zip(profile.constants, constants_figure(profile, data), strict=True)
    trained = {float(constant): seeds for constant, row in rows if (seeds := results.of(row))}
    if not trained:
        return None
    found, unit = results.of(lipschitz_scaling(profile, 0.0, data)), results.of(fixed(profile, 1.0, data))
    with style():
        figure = Figure(figsize=(8, 4.2))
        panels = figure.subplots(1, 2 if unit else 1, sharey=True, squeeze=False)[0]
        caption = _over_constants(panels[0], trained, found)
        if unit:
            caption.append(_over_temperatures(panels[1], unit))
        named = dict(pair for axes in panels for pair in zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3)
    return Drawn(f"scaling-{profile.sets[data]['data']}", f"ECE over L and over 1/T on {data}", figure, caption)


def _over_constants(axes: Axes, trained: dict[float, list[Result]], found: Sequence[Result]) -> list[str]:
    constants, rows = list(trained), list(trained.values())
    errors = [[run.metrics.ece for run in seeds] for seeds in rows]
    signed = [[run.metrics.esce for run in seeds] for seeds in rows]
    band = {c: [fmean(run.metrics.ece_band[end] for run in seeds) for end in (0, 1)] for c, seeds in trained.items()}
    means, best = _draw_errors(axes, constants, errors, signed, band, marker="o")
    log_axis(axes, "x", [*constants, *(run.constant for run in found)])
    axes.set_xticks(constants, [f"{constant:g}" for constant in constants])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(title="(a) trained at a fixed L", xlabel="L", ylabel="test ECE (and ESCE)")
    low, high = band[constants[best]]
    caption = [
        f"(a) Over fixed L the test ECE is {means[0]:.4f} at L = {constants[0]:g}, {means[best]:.4f} at "
        f"L = {constants[best]:g}, where it is smallest (a calibrated model would show {low:.4f} to {high:.4f}), and "
        f"{means[-1]:.4f} at L = {constants[-1]:g}; ESCE goes from {fmean(signed[0]):+.4f} to "
        f"{fmean(signed[-1]):+.4f}. {_seeds(*rows)}"
    ]
    if found:
        places, values = [run.constant for run in found], [run.metrics.ece for run in found]
        axes.plot(places, values, "*", markersize=12, color=LIST_COLOUR, zorder=5, label="LiST at its L*")
        text = f"LiST finds L* = {fmean(places):.4g} with a test ECE of {fmean(values):.4f}"
        caption.append(f"{text}. {_seeds(found)}")
    return caption


def _over_temperatures(axes: Axes, unit: Sequence[Result]) -> str:
    scales = [1 / run.metrics.temperature for run in unit if 0 < run.metrics.temperature < math.inf]
    grid = scale_grid(min([1.0, *scales]) / 2, max([1.0, *scales]) * 8)

    def at(scale: float, run: Result) -> tuple[Tensor, Tensor, int]:
        return run.answers.logits.double() * scale, run.answers.labels, run.answers.bins

    errors, signed = ([[error(*at(scale, run)) for run in unit] for scale in grid] for error in (ece, esce))
    # the band is simulated, which takes long, but it is smooth, and hardly differs between seeds
    floors = {scale: ece_floor(*at(scale, unit[0])) for scale in [*grid[: -1 : STEPS // 2], grid[-1]]}
    band = {scale: [floor.lower, floor.upper] for scale, floor in floors.items()}
    means, best = _draw_errors(axes, grid, errors, signed, band)
    log_axis(axes, "x", grid)
    axes.set(title="(b) 1-Lipschitz, scaled by 1/T", xlabel="1/T")
    axes.plot(grid[best], means[best], "D", color=BAD, markersize=6, zorder=5, label="smallest ECE over 1/T")
    text = (
        f"(b) The network trained at L = 1 has a test ECE of {means[grid.index(1.0)]:.4f} as it is; with logits times "
        f"1/T it is smallest at 1/T = {grid[best]:.3g} with {means[best]:.4f}"
    )
    if scales:
        axes.axvline(fmean(scales), color=BAD, linewidth=1, linestyle=":", zorder=1, label="1/T* (smallest NLL)")
        text += f", and the test set's T* gives 1/T* = {fmean(scales):.3g}"
    return f"{text}. {_seeds(unit)}"


def scale_grid(low: float, high: float) -> list[float]:
    """Values of 1/T, evenly spread on a logarithmic axis, from at most `low` to at least `high`; 1 is one of them."""
    return [2 ** (k / STEPS) for k in range(math.floor(STEPS * math.log2(low)), math.ceil(STEPS * math.log2(high)) + 1)]


def _draw_errors(
    axes: Axes, places: Sequence[float], errors: Seeds, signed: Seeds, band: dict[float, list[float]], marker: str = ""
) -> tuple[list[float], int]:
    """ECE and, fainter, ESCE, mean and range of seeds, and the band of a calibrated model; returns ECE's means."""
    for values, name, shade, line in ((signed, "ESCE, signed", FAINT, "--"), (errors, "ECE", GOOD, "-")):
        several = max(map(len, values)) > 1
        label = f"{name}: mean and range of seeds" if several else name
        axes.plot(places, list(map(fmean, values)), line, color=shade, marker=marker, markersize=4, label=label)
        if several:
            lowest, highest = list(map(min, values)), list(map(max, values))
            axes.fill_between(places, lowest, highest, color=shade, alpha=0.3, linewidth=0)
    low, high = zip(*band.values(), strict=True)
    axes.fill_between(list(band), low, high, color=BAND, linewidth=0, zorder=1, label="ECE of a calibrated model, 95 %")
    axes.axhline(0, color=INK, linewidth=0.8, zorder=1)  # of ESCE
    means = list(map(fmean, errors))
    return means, means.index(min(means))


def dynamics(profile: Profile, results: Results, data: str) -> Drawn | None:
    """L and T* in Phase I from several L0; the first seed is drawn strongly, the others faintly."""
    rows = zip(profile.starts, starts_figure(profile, data), strict=True)
    started = {start: seeds for start, row in rows if (seeds := results.of(row))}
    if not started:
        return None
    with style():
        figure = Figure(figsize=(8, 4.2))
        left, right = figure.subplots(1, 2)
        inset = right.inset_axes((0.42, 0.09, 0.56, 0.4))
        all_l: list[float] = []
        all_t: list[tuple[int, float]] = []
        for start, seeds in started.items():
            shade = colour(profile.starts.index(start))
            for i, result in enumerate(seeds):
                last = len(result.phase_one)
                constants = result.constants[: last + 1]
                temperatures = [(epoch, t) for epoch, t in finite_temperatures(result) if epoch <= last]
                look = {"color": shade, "alpha": 0.4 if i else 1.0, "linewidth": 1.0 if i else 1.6}
                left.plot(constants, label=None if i else f"L0 = {start:g}", **look)
                left.plot(last, constants[-1], "o", markersize=5, **look)
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
        figure.legend(loc="outside lower center", ncols=len(started))
    firsts = [replace(seeds[0], name=f"Seed {seeds[0].settings.seed}") for seeds in started.values()]
    caption = [describe_dynamics(run) for run in firsts]
    by_seed: dict[int, list[float]] = {}
    for run in (run for seeds in started.values() for run in seeds):
        by_seed.setdefault(run.settings.seed, []).append(run.constant)
    caption += [
        f"With seed {seed} L ends at {', '.join(f'{end:.4g}' for end in ends)}: a relative spread, largest minus "
        f"smallest over the mean, of {percent(relative_spread(ends))}."
        for seed, ends in sorted(by_seed.items())
    ]
    return Drawn(f"dynamics-{profile.sets[data]['data']}", f"L and T* in Phase I on {data}", figure, caption)


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


def fixed_reliability(profile: Profile, results: Results, data: str) -> Drawn | None:
    """The reliability diagrams over fixed L, of the first seed (App. C)."""
    rows = {row.name: results.of(row) for row in constants_figure(profile, data)}
    name = f"reliability-fixed-{profile.sets[data]['data']}"
    return _reliability(name, f"Reliability over fixed L on {data}", rows, columns=4)


def list_reliability(profile: Profile, results: Results) -> Drawn | None:
    """LiST's reliability diagram on each data set, of the first seed (App. C)."""
    rows = {data: results.of(lipschitz_scaling(profile, 0.0, data)) for data in profile.sets}
    return _reliability("reliability-list", "Reliability of LiST on each data set", rows, columns=3)


def _reliability(name: str, title: str, rows: dict[str, list[Result]], *, columns: int) -> Drawn | None:
    runs = [replace(seeds[0], name=row) for row, seeds in rows.items() if seeds]
    titles = [f"{run.name}, ECE {run.metrics.ece:.3f}" for run in runs]
    return Drawn(name, title, *reliability_grid(runs, titles, columns=columns)) if runs else None


def _seeds(*rows: Sequence[Result]) -> str:
    """How many runs the numbers are means of."""
    counts = sorted({len(seeds) for seeds in rows})
    if counts == [1]:
        return "One seed each."
    return f"Means of {' to '.join(map(str, [counts[0], counts[-1]][: len(counts)]))} seeds."
