"""Norms and errors as affine functions of the norm of a network's input, and what a layer makes of them."""

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Affine:
    """slope * ||x|| + offset, both at least zero."""

    slope: float
    offset: float

    def __add__(self, other: "Affine") -> "Affine":
        return Affine(self.slope + other.slope, self.offset + other.offset)

    def __mul__(self, factor: float) -> "Affine":
        return Affine(self.slope * factor, self.offset * factor)

    def at(self, norms: Tensor) -> Tensor:
        """The value for inputs of these norms, (N,)."""
        return (self.slope * norms + self.offset).nan_to_num(nan=math.inf, posinf=math.inf)


@dataclass(frozen=True)
class Values:
    """What is known of the values at one place of the network: their norm, and how far they are off."""

    norm: Affine
    error: Affine

    @property
    def computed(self) -> Affine:
        """The norm of the values as they were computed."""
        return self.norm + self.error


@dataclass(frozen=True)
class Layer:
    """A B-Lipschitz layer: the norm of m(0), and the error that it adds to an input of norm M, rate * M + offset."""

    lipschitz: float
    at_zero: float = 0.0
    rate: float = 0.0
    offset: float = 0.0

    def __call__(self, values: Values) -> Values:
        """The values behind the layer."""
        added = values.computed * self.rate + Affine(0.0, self.offset)
        return Values(values.norm * self.lipschitz + Affine(0.0, self.at_zero), values.error * self.lipschitz + added)
