"""The feedback on L and its stopping rule: pure numbers, no network."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from lipscale.errors import UserError

# Where T* is degenerate it names a direction but no size. Such steps change L by at most a factor of 2 an epoch
# and, all together, by at most a factor of 2^6 = 64 over a run, or a bounded step would still run away.
DEGENERATE_STEP = 2.0
DEGENERATE_TOTAL = 64.0


def next_constant(constant: float, temperature: float) -> float:
    """The feedback rule, L_{e+1} = L_e / T*_e (Sec. 4.1)."""
    return constant / temperature


def has_settled(constants: Sequence[float], *, window: int = 30, tolerance: float = 0.001) -> bool:
    """The stopping rule on the last W constants: (max - min) / mean < tolerance (Sec. 4.3)."""
    if len(constants) < window:
        return False
    # a small error in T moves a large L a lot, so stop on L, and relative to its size
    recent = constants[-window:]
    return (max(recent) - min(recent)) / (sum(recent) / window) < tolerance


def is_degenerate(temperature: float) -> bool:
    """Whether T* is one of the limits of Assumption 2: 0 (no error to learn from) or inf (no better than chance)."""
    return temperature == 0 or math.isinf(temperature)


@dataclass
class Feedback:
    """L over the epochs of Phase I: `update` with each epoch's T*, until `settled`."""

    constant: float
    window: int = 30
    tolerance: float = 0.001
    constants: list[float] = field(default_factory=list)  # L_1, L_2, ...: the constant after each update
    degenerate_drift: float = 1.0  # the factor by which degenerate steps have moved L so far
    steered: bool = False  # whether the last T* could say where to go

    def __post_init__(self) -> None:
        if self.window < 2:
            raise UserError(f"expected window >= 2, got {self.window}")

    def update(self, temperature: float) -> float:
        """Move L by this epoch's T* and return the new constant."""
        self.steered = not is_degenerate(temperature)
        if not self.steered:
            wanted = self.degenerate_drift * (DEGENERATE_STEP if temperature == 0 else 1 / DEGENERATE_STEP)
            drift = min(max(wanted, 1 / DEGENERATE_TOTAL), DEGENERATE_TOTAL)
            self.constant *= drift / self.degenerate_drift
            self.degenerate_drift = drift
        else:
            self.constant = next_constant(self.constant, temperature)
        self.constants.append(self.constant)
        return self.constant

    @property
    def settled(self) -> bool:
        """Whether L has stopped moving, and not only because its degenerate steps are used up."""
        return self.steered and has_settled(self.constants, window=self.window, tolerance=self.tolerance)
