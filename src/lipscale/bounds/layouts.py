"""How numbers lie in memory: what copies in one layout gives the same memory back in another.

`contiguous` and `reshape` are such operations. Work in place then reaches a value that others read, or does not, by the
layout: a network must be looked at in those that its modules meet.
"""

from typing import NamedTuple, Self

from torch import Tensor


class Layout(NamedTuple):
    """The shape of a batch's samples, and the axes of the batch from the outermost in memory to the innermost."""

    order: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def seen_in(cls, x: Tensor) -> Self:
        """That of a batch."""
        strides = x.stride()
        return cls(tuple(sorted(range(x.ndim), key=lambda axis: -strides[axis])), tuple(x.shape[1:]))

    def of(self, x: Tensor) -> Tensor:
        """The same numbers in this layout."""
        return x.permute(self.order).contiguous().permute([self.order.index(axis) for axis in range(x.ndim)])


def usual_layouts(shape: tuple[int, ...]) -> list[Layout]:
    """Row-major, and of images with the channels innermost and with the batch innermost."""
    axes = (*range(1 + len(shape)),)
    if len(shape) < 2:
        return [Layout(axes, shape)]
    return [Layout(order, shape) for order in (axes, (0, *axes[2:], 1), (*axes[1:], 0))]
