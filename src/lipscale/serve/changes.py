"""A change of a picture, of exactly some size, for people to see how large that is."""

import torch
from torch import Tensor

from lipscale.attacks.ball import Box, distances
from lipscale.report.samples import as_png
from lipscale.serve.schemas import Change

HALVINGS = 60


def with_norm(x: Tensor, way: Tensor, size: float, box: Box | None) -> Tensor:
    """The point at this l2 distance from x (1, ...) in a direction, bent along the box where it meets it.

    ``||clamp(x + t way) - x||`` grows with t, so bisection finds the t. Where the box ends before, the farthest point.
    """

    def at(t: float) -> Tensor:
        return x + t * way if box is None else (x + t * way).clamp(*box)

    low, high = 0.0, size
    while float(distances(at(high), x)) < size:
        low, high = high, 2 * high
        if high > 1e6 * size:
            return at(low)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if float(distances(at(middle), x)) <= size else (low, middle)
    return at(low)


def shown_change(x: Tensor, point: Tensor) -> Change:
    """The changed picture, and the difference magnified until it fills the range: grey is no change."""
    difference = (point - x)[0]
    largest = float(difference.abs().max())
    factor = 0.5 / largest if largest > 0 else 1.0
    return Change(
        picture=as_png(point[0]),
        difference=as_png(difference * factor + 0.5),
        magnified=factor,
        size=float(torch.linalg.vector_norm(difference)),
    )
