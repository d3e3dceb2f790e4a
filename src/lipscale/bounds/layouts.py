"""How numbers lie in memory: what copies in one layout gives the same memory back in another.

`contiguous` and `reshape` are such operations. Work in place then reaches a value that others read, or does not, by the
layout: a network must be looked at in those that its modules meet.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

from torch import Tensor


class Layout(NamedTuple):
    """The shape of a batch and its strides as they are: gaps count, and so do the strides of axes of size 1."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def seen_in(cls, x: Tensor) -> Self:
        """That of a batch."""
        return cls(tuple(x.shape), x.stride())

    @classmethod
    def ordered(cls, shape: Sequence[int], order: Sequence[int]) -> Self:
        """Without gaps, the axes from the outermost in memory to the innermost."""
        strides, step = [0] * len(shape), 1
        for axis in reversed(order):
            strides[axis], step = step, step * max(shape[axis], 1)
        return cls(tuple(shape), tuple(strides))

    @property
    def extent(self) -> int:
        """How many numbers of memory it spans."""
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))

    def within(self, memory: Tensor) -> Tensor:
        """A batch in this layout, of a copy of this memory."""
        return memory.clone().as_strided(self.shape, self.strides)


def usual_layouts(shape: Sequence[int]) -> list[Layout]:
    """Of a batch: row-major, and of images with the channels innermost and with the batch innermost."""
    axes = (*range(len(shape)),)
    orders = [axes] if len(shape) < 3 else [axes, (0, *axes[2:], 1), (*axes[1:], 0)]
    return [Layout.ordered(shape, order) for order in orders]
