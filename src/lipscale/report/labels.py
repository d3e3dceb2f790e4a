"""Labels beside points that cover neither each other nor the points."""

import itertools
import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.transforms import Affine2D, Bbox

from lipscale.report.theme import FAINT

# all in points, so that a figure looks the same at every resolution
DOT = 11  # that a point may be wide
DISTANCES = (7, 10, 15, 22, 30, 40)  # of a label from its point; beyond FAR it needs a line
DIRECTIONS = (0, 45, -45, 90, -90, 135, -135, 180)  # in degrees, the most readable first
FAR = 12
FREE = 1  # that stays empty around a label


def place_labels(axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[str], *, size: float = 8) -> None:
    """Write each label where it is free, as near as possible to its point, and to the right if it can be.

    Call it last: places are found for the limits and the layout as they are then.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # settles the layout
    to_points = Affine2D().scale(72 / figure.dpi)
    inside = axes.get_window_extent().transformed(to_points)
    places = [(float(x), float(y)) for x, y in (axes.transData + to_points).transform(points)]
    taken = [Bbox.from_bounds(x - DOT / 2, y - DOT / 2, DOT, DOT) for x, y in places]
    for point, place, label in zip(points, places, labels, strict=True):
        probe = axes.text(*point, label, fontsize=size)
        extent = probe.get_window_extent().transformed(to_points)
        probe.remove()
        best, fewest = (0, extent), math.inf
        for distance, angle in itertools.product(DISTANCES, DIRECTIONS):
            box = _box(place, extent.width, extent.height, distance, math.radians(angle))
            clashes = _clashes(box.padded(FREE), taken, inside)
            if distance <= FAR:  # without a line it would be read as the label of the nearest point
                clashes += sum(_gap(box, other) < 1.5 * _gap(box, place) for other in places if other != place)
            if clashes < fewest:
                best, fewest = (distance, box), clashes
        distance, box = best
        line = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 5}
        text = axes.annotate(
            label, point, (box.x0 - place[0], box.y0 - place[1]), textcoords="offset points", fontsize=size,
            va="bottom", zorder=6, arrowprops=line if distance > FAR else None,
        )  # fmt: skip
        text.set_in_layout(False)  # what is placed must not move the layout
        taken.append(box)


def _box(place: tuple[float, float], width: float, height: float, distance: float, angle: float) -> Bbox:
    """The place of a text whose nearest side or corner is so far from the point."""
    dx, dy = round(math.cos(angle)), round(math.sin(angle))  # -1, 0 or 1: before, at or behind the point
    x = place[0] + distance * math.cos(angle) + (dx - 1) * width / 2
    y = place[1] + distance * math.sin(angle) + (dy - 1) * height / 2
    return Bbox.from_bounds(x, y, width, height)


def _gap(box: Bbox, place: tuple[float, float]) -> float:
    """How far a point is from the nearest side or corner of a box."""
    across = max(box.x0 - place[0], 0, place[0] - box.x1)
    along = max(box.y0 - place[1], 0, place[1] - box.y1)
    return math.hypot(across, along)


def _clashes(box: Bbox, taken: Sequence[Bbox], inside: Bbox) -> int:
    outside = not (inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1)
    return sum(box.overlaps(other) for other in taken) + 10 * outside
