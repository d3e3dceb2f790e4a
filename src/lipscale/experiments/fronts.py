"""Accuracy against certified accuracy: the paper's fronts over fixed L and over xi, and those of users' own sweeps."""

from collections.abc import Sequence
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
    with_ece: bool = False  # in its label

    @property
    def singles(self) -> list[tuple[float, float]]:
        """Test accuracy and certified accuracy of each seed."""
        return [(run.metrics.accuracy, run.certified(CERTIFIED_AT)) for run in self.seeds]

    @property
    def place(self) -> tuple[float, float]:
        """Their means."""
        accuracies, shares = zip(*self.singles, strict=True)
        return fmean(accuracies), fmean(shares)

    @property
    def ece(self) -> float:
        """Mean test ECE."""
        return fmean(run.metrics.ece for run in self.seeds)

    @property
    def good(self) -> int:
        """How many seeds cannot be told from a calibrated model."""
        return sum(run.metrics.as_calibrated_as_its_set if self.own_limit else run.calibrated for run in self.seeds)

    @property
    def calibrated(self) -> bool:
        """Whether most seeds cannot be told from a calibrated model."""
        return 2 * self.good > len(self.seeds)


def pareto(profile: Profile, results: Results, data: str) -> Drawn | None:
    """The fronts over fixed L, with LiST's point on it, and over xi (Fig. 3 and its twin in App. C)."""
    over_l = zip(profile.constants, constants_figure(profile, data), strict=True)
    over_xi = zip(profile.offsets, offsets_figure(profile, data), strict=True)
    constants = [Point(f"L = {constant:g}", results.of(row)) for constant, row in over_l]
    if found := results.of(lipschitz_scaling(profile, 0.0, data)):
        constants.append(Point(f"LiST, L* = {fmean(run.constant for run in found):.3g}", found, star=True))
    offsets = [Point(f"xi = {offset:g}", results.of(row), with_ece=True) for offset, row in over_xi]
    name, title = f"pareto-{profile.sets[data]['data']}", f"Accuracy against certified accuracy on {data}"
    return _draw(name, title, {"(a) fixed L": constants, "(b) LiST over the offset xi": offsets}, height=4.2)


def front(rows: Sequence[tuple[str, list[Result]]]) -> Drawn | None:
    """Accuracy against certified accuracy of any certified runs, a point a label, and whether each is calibrated."""
    proven = [(name, [run for run in seeds if run.metrics.is_certified]) for name, seeds in rows]
    points = [Point(name, seeds, own_limit=True) for name, seeds in proven]
    drawn = _draw("front", "Accuracy against certified accuracy", {"": points}, height=5)
    if drawn and (left_out := [name for name, seeds in rows if seeds and not dict(proven)[name]]):
        drawn.caption.append(f"Without a certificate, and so not drawn: {', '.join(left_out)}.")
    return drawn


def _draw(name: str, title: str, panels: dict[str, list[Point]], *, height: float) -> Drawn | None:
    """A panel for each front that has finished runs, a legend for all, and the caption; a title joins its points."""
    shown = {head: found for head, points in panels.items() if (found := [point for point in points if point.seeds])}
    if not shown:
        return None
    caption = []
    with style():
        figure = Figure(figsize=(8, height))
        grid = figure.subplots(1, len(shown), squeeze=False)[0]
        _draw_legend(figure, [point for points in shown.values() for point in points])
        for axes, (head, points) in zip(grid, shown.items(), strict=True):
            axes.set_title(head)
            _draw_front(axes, points, joined=[point.place for point in points if head and not point.star])
            caption += _describe(points, about=head and f"{head}: ")
    return Drawn(name, title, figure, caption)


def _draw_front(axes: Axes, points: Sequence[Point], *, joined: Sequence[tuple[float, float]]) -> None:
    """Means as labelled points, filled where most seeds are calibrated, and single seeds as faint dots."""
    if joined:
        axes.plot(*zip(*joined, strict=True), color=FAINT, linewidth=1, zorder=1)
    for point in points:
        if len(point.seeds) > 1:
            axes.plot(*zip(*point.singles, strict=True), ".", color=FAINT, markersize=4, zorder=2)
        axes.plot(*point.place, zorder=3, **_marker(point.star, point.calibrated))
    axes.set(xlabel="accuracy", ylabel=f"certified accuracy at {EPSILON}")
    axes.margins(0.16)
    labels = [f"{point.name}\nECE {point.ece:.3f}" if point.with_ece else point.name for point in points]
    place_labels(axes, [point.place for point in points], labels)


def _marker(star: bool, calibrated: bool) -> dict[str, Any]:
    """Shape, size and colours; the filling tells what the colour tells."""
    shade = LIST_COLOUR if star else GOOD if calibrated else BAD
    return {
        **{"linestyle": "none", "marker": "*" if star else "o", "markersize": 14 if star else 7},
        **{"markeredgecolor": shade, "markerfacecolor": shade if calibrated else "white", "markeredgewidth": 1.5},
    }


def _draw_legend(figure: Figure, points: Sequence[Point]) -> None:
    handles = []
    for star, bad in sorted({(point.star, not point.calibrated) for point in points}):
        label = f"{'LiST, ' * star}{'not calibrated' if bad else 'not to be told from calibrated'}"
        handles.append(Line2D([], [], label=label, **_marker(star, not bad)))
    if any(len(point.seeds) > 1 for point in points):
        handles.append(Line2D([], [], linestyle="none", marker=".", color=FAINT, label="single seeds"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _describe(points: Sequence[Point], *, about: str) -> list[str]:
    good = [point.name for point in points if point.calibrated]
    which = f" ({'; '.join(good)})" if good else ""
    first = f"{about}{len(good)} of {len(points)} points{which} cannot be told from a calibrated model in most seeds."
    caption = [first, *map(_describe_point, points)]
    if runs := [run for point in points if not point.own_limit for run in point.seeds]:
        strictly = sum(run.metrics.ece <= run.strict_limit for run in runs)
        caption.append(
            "The limit allows every network the error of a T* from a tenth of the data. Without that allowance "
            f"{strictly} of {len(runs)} runs pass for calibrated."
        )
    return caption


def _describe_point(point: Point) -> str:
    seeds, (accuracy, certified) = point.seeds, map(percent, point.place)
    limit = fmean(run.metrics.ece_limit if point.own_limit else run.limit for run in seeds)
    text = f"{point.name} has accuracy {accuracy}, certified accuracy {certified} at {EPSILON} and "
    text += f"ECE {point.ece:.4f} (limit {limit:.4f})"
    if len(seeds) > 1:
        text += f", as means of {len(seeds)} seeds, {point.good} of them calibrated"
    else:
        text += ", calibrated" if point.calibrated else ", not calibrated"
    left = [run.robust.robust_accuracy for run in seeds if run.robust]
    if left and (attack := seeds[0].planned.attack):
        text += f"; {ATTACK_NAMES[attack.name]} at {attack.epsilon:g} leaves {percent(fmean(left))}"
    return f"{text}."
