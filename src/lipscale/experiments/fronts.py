"""Accuracy against certified accuracy: the paper's fronts over fixed L and over xi, and those of users' own sweeps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lipscale.experiments.profiles import CERTIFIED_AT, Profile
from lipscale.experiments.recipes import constants_figure, lipschitz_scaling, offsets_figure
from lipscale.experiments.results import Result, Results
from lipscale.report.labels import place_labels
from lipscale.report.theme import BAD, FAINT, GOOD, Drawn, colour, style
from lipscale.report.verdict import ATTACK_NAMES, percent

LIST_COLOUR = colour(2)
EPSILON = "36/255"  # CERTIFIED_AT, as people know it


@dataclass(frozen=True)
class Point:
    """A point of a front: the mean of one run under several seeds."""

    name: str
    seeds: Sequence[Result]
    star: bool = False  # LiST among fixed constants
    own_limit: bool = False  # held against each run's own limit, not one measure for all methods

    @property
    def place(self) -> tuple[float, float]:
        """Mean test accuracy and mean certified accuracy."""
        singles = zip(*map(_place, self.seeds), strict=True)
        accuracy, certified = map(fmean, singles)
        return accuracy, certified

    @property
    def ece(self) -> float:
        """Mean test ECE."""
        return fmean(result.metrics.ece for result in self.seeds)

    @property
    def good(self) -> int:
        """How many seeds cannot be told from a calibrated model."""
        seeds = self.seeds
        return sum(run.metrics.as_calibrated_as_its_set if self.own_limit else run.calibrated for run in seeds)

    @property
    def calibrated(self) -> bool:
        """Whether most seeds cannot be told from a calibrated model."""
        return 2 * self.good > len(self.seeds)


def _place(result: Result) -> tuple[float, float]:
    return result.metrics.accuracy, result.certified(CERTIFIED_AT)


def _points(rows: Iterable[tuple[str, list[Result]]], **options: bool) -> list[Point]:
    return [Point(name, seeds, **options) for name, seeds in rows if seeds]


def pareto(profile: Profile, results: Results, data: str) -> Drawn | None:
    """The fronts over fixed L, with LiST's point on it, and over xi (Fig. 3 and its twin in App. C)."""
    over_l = zip(profile.constants, constants_figure(profile, data), strict=True)
    over_xi = zip(profile.offsets, offsets_figure(profile, data), strict=True)
    constants = _points((f"L = {constant:g}", results.of(row)) for constant, row in over_l)
    offsets = _points((f"xi = {offset:g}", results.of(row)) for offset, row in over_xi)
    if found := results.of(lipschitz_scaling(profile, 0.0, data)):
        constants.append(Point(f"LiST, L* = {fmean(result.constant for result in found):.3g}", found, star=True))
    fronts = {"(a) fixed L": constants, "(b) LiST over the offset xi": offsets}
    fronts = {title: points for title, points in fronts.items() if points}
    if not fronts:
        return None
    with style():
        figure = Figure(figsize=(8, 4.2))
        panels = figure.subplots(1, len(fronts), squeeze=False)[0]
        _draw_legend(figure, [*constants, *offsets])
        for axes, (title, points) in zip(panels, fronts.items(), strict=True):
            axes.set_title(title)
            draw_front(axes, points, with_ece=points is offsets)
    caption = [sentence for title, points in fronts.items() for sentence in _describe(points, about=f"{title}: ")]
    name = profile.sets[data]["data"]
    return Drawn(f"pareto-{name}", f"Accuracy against certified accuracy on {data}", figure, caption)


def front(rows: Sequence[tuple[str, list[Result]]]) -> Drawn | None:
    """Accuracy against certified accuracy of any runs, a point a label, and whether each is calibrated by itself."""
    points = _points(rows, own_limit=True)
    if not points:
        return None
    with style():
        figure = Figure(figsize=(8, 5))
        axes = figure.subplots()
        _draw_legend(figure, points)
        draw_front(axes, points, line=False)
    return Drawn("front", "Accuracy against certified accuracy", figure, _describe(points))


def draw_front(axes: Axes, points: Sequence[Point], *, with_ece: bool = False, line: bool = True) -> None:
    """Means as labelled points, filled where most seeds are calibrated, and single seeds as faint dots."""
    joined = [point.place for point in points if not point.star]
    if line and joined:
        axes.plot(*zip(*joined, strict=True), color=FAINT, linewidth=1, zorder=1)
    for point in points:
        if len(point.seeds) > 1:
            singles = zip(*map(_place, point.seeds), strict=True)
            axes.plot(*singles, ".", color=FAINT, markersize=4, zorder=2)
        axes.plot(*point.place, zorder=3, **_marker(point.star, point.calibrated))
    axes.set(xlabel="accuracy", ylabel=f"certified accuracy at {EPSILON}")
    axes.margins(0.16)
    labels = [f"{point.name}\nECE {point.ece:.3f}" if with_ece else point.name for point in points]
    place_labels(axes, [point.place for point in points], labels)


def _marker(star: bool, calibrated: bool) -> dict[str, Any]:
    """Shape, size and colours; the filling tells what the colour tells."""
    shade = LIST_COLOUR if star else GOOD if calibrated else BAD
    return {
        **{"linestyle": "none", "marker": "*" if star else "o", "markersize": 14 if star else 7},
        **{"markeredgecolor": shade, "markerfacecolor": shade if calibrated else "white", "markeredgewidth": 1.5},
    }


def _draw_legend(figure: Figure, points: Sequence[Point]) -> None:
    kinds = sorted({(point.star, not point.calibrated) for point in points})
    handles = [
        Line2D(
            [], [], label=f"{'LiST, ' * star}{'not calibrated' if bad else 'not to be told from calibrated'}",
            **_marker(star, not bad),
        )
        for star, bad in kinds
    ]  # fmt: skip
    if any(len(point.seeds) > 1 for point in points):
        handles.append(Line2D([], [], linestyle="none", marker=".", color=FAINT, label="single seeds"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _describe(points: Sequence[Point], *, about: str = "") -> list[str]:
    good = [point.name for point in points if point.calibrated]
    which = f" ({'; '.join(good)})" if good else ""
    first = f"{about}{len(good)} of {len(points)} points{which} cannot be told from a calibrated model in most seeds."
    caption = [first, *map(_describe_point, points)]
    runs = [result for point in points if not point.own_limit for result in point.seeds]
    if runs:
        strictly = sum(result.metrics.ece <= result.strict_limit for result in runs)
        caption.append(
            "The limit allows every network the error of a T* from a tenth of the data. Without that allowance "
            f"{strictly} of {len(runs)} runs pass for calibrated."
        )
    return caption


def _describe_point(point: Point) -> str:
    accuracy, certified = map(percent, point.place)
    some_proven = any(result.metrics.is_certified for result in point.seeds)
    proven = f"certified accuracy {certified} at {EPSILON}" if some_proven else "no certificate"
    limit = fmean(result.metrics.ece_limit if point.own_limit else result.limit for result in point.seeds)
    text = f"{point.name} has accuracy {accuracy}, {proven} and ECE {point.ece:.4f} (limit {limit:.4f})"
    if len(point.seeds) > 1:
        text += f", as means of {len(point.seeds)} seeds, {point.good} of them calibrated"
    else:
        text += ", calibrated" if point.calibrated else ", not calibrated"
    left = [result.robust.robust_accuracy for result in point.seeds if result.robust]
    if left and (attack := point.seeds[0].planned.attack):
        text += f"; {ATTACK_NAMES[attack.name]} at {attack.epsilon:g} leaves {percent(fmean(left))}"
    return f"{text}."
