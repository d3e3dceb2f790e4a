"""Labels beside points that cover neither each other nor the points; by hand, because matplotlib places none itself."""

import itertools
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.transforms import Affine2D, Bbox

from lipscale.report.theme import FAINT

# in points, so that a figure looks the same at every resolution
DOT = 11  # that a point may be wide
DISTANCES = (7, 10, 15, 22, 30, 40)  # of a label from its point
DIRECTIONS = ((1, 0), (1, 1), (1, -1), (0, 1), (0, -1), (-1, 1), (-1, -1), (-1, 0))  # the most readable first
LINE = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 5}


def place_labels(axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[str], *, size: float = 8) -> None:
    """Write each label where it is free, as near as possible to its point, and to the right if it can be.

    Call it last: places are found for the limits and the layout as they are then.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # settles the layout
    to_points = Affine2D().scale(72 / figure.dpi)
    inside = axes.get_window_extent().transformed(to_points)
    places = (axes.transData + to_points).transform(points).tolist()
    taken = [Bbox.from_bounds(x - DOT / 2, y - DOT / 2, DOT, DOT) for x, y in places]

    def clashes(box: Bbox) -> int:
        outside = not (inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1))
        return box.padded(1).count_overlaps(taken) + 10 * outside

    for point, (x, y), label in zip(points, places, labels, strict=True):
        text = axes.annotate(
            label, point, (0, 0), textcoords="offset points", fontsize=size, va="bottom", zorder=6, arrowprops=LINE
        )
        text.set_in_layout(False)  # what is placed must not move the layout
        extent = Text.get_window_extent(text).transformed(to_points)
        w, h = extent.width, extent.height
        candidates = {
            (d, dx, dy): Bbox.from_bounds(x + d * dx + (dx - 1) * w / 2, y + d * dy + (dy - 1) * h / 2, w, h)
            for d, (dx, dy) in itertools.product(DISTANCES, DIRECTIONS)
        }
        (d, dx, dy), best = min(candidates.items(), key=lambda item: clashes(item[1]))  # the nearest of the best
        assert text.arrow_patch is not None
        text.arrow_patch.set_visible(d > DISTANCES[0] or dx * dy != 0)  # right beside its point it needs no line
        text.set_position((best.x0 - x, best.y0 - y))
        taken.append(best)
