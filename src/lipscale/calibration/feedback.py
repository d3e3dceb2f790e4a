"""The feedback on L and its stopping rules: pure numbers, no network."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import linear_regression

from lipscale.errors import UserError

# Where T* is degenerate it names a direction but no size. Such steps change L by at most a factor of 2 an epoch
# and, all together, by at most a factor of 2^6 = 64 over a run, or a bounded step would still run away. Every change of
# direction halves them, or they would go to and fro for ever.
DEGENERATE_STEP = 2.0
DEGENERATE_TOTAL = 64.0

# the steady rule's constants: the same for every data set, and none is a setting
LARGEST_STEP = 2.0  # away from 1, L at most doubles or halves in an epoch: an untrained network knows next to nothing
CAUTION, CONFIDENCE = 0.5, 1.1  # the gain falls by one where T* changes sides, and grows by the other where it does not
PERSISTENT, RESUMED = 5, 0.25  # a mean over so many epochs that exceeds the error takes the gain back up to this
FEWEST_EPOCHS = 10  # before that, half of the run is too little to judge by
FINAL_SHARE = 5  # the trend of the last fifth of the epochs decides on L*
UNKNOWN = 1.0  # the error of log T* from which on T* is degenerate, too: it may as well be three times as large


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


def is_resolved(constants: Sequence[float], error: float, *, budget: int = 0) -> bool:
    """Whether what is left to gain is less than can be measured: log L will move by less than s until the budget ends.

    L contracts about as the logarithm of time, so that every further doubling of the run moves it about as much as the
    second half of the run did. This needs no window: a run twice as long must stand still for twice as long. Before a
    tenth of the budget nothing is decided, since L is also at rest where it turns from growing to contracting.
    """
    epochs = len(constants)
    if epochs < max(FEWEST_EPOCHS, budget / 10):
        return False
    recent = constants[epochs // 2 :]
    doublings = max(1.0, math.log2(budget / epochs)) if budget else 1.0
    return math.log(max(recent) / min(recent)) * doublings < error


def is_degenerate(temperature: float) -> bool:
    """Whether T* is one of the limits of Assumption 2: 0 (no error to learn from) or inf (no better than chance)."""
    return temperature == 0 or math.isinf(temperature)


@dataclass
class Feedback(ABC):
    """L over the epochs of Phase I: `update` with each epoch's T*, until `settled`; `final` is what Phase II keeps."""

    constant: float
    constants: list[float] = field(default_factory=list)  # L_1, L_2, ...: the constant after each update
    degenerate_drift: float = 1.0  # the factor by which degenerate steps have moved L so far
    degenerate_step: float = DEGENERATE_STEP  # by which factor the last one could, up (side 1) or down (-1)
    degenerate_side: int = 0
    steered: bool = False  # whether the last T* could say where to go

    def update(self, temperature: float, error: float = 0.0) -> float:
        """Move L by this epoch's T* (`error`: the standard error of log T*) and return the new constant."""
        if not temperature >= 0:
            raise UserError(f"expected T* >= 0, got {temperature}")
        self.steered = self._can_steer(temperature, error)
        self.constant = self._moved(temperature, error) if self.steered else self._drifted(temperature, error)
        self.constants.append(self.constant)
        return self.constant

    def _can_steer(self, temperature: float, error: float) -> bool:
        """Whether T* names a size, not only a direction."""
        return not is_degenerate(temperature)

    @abstractmethod
    def _moved(self, temperature: float, error: float) -> float:
        """The next constant, where T* can steer."""

    def _drifted(self, temperature: float, error: float) -> float:
        """The next constant, where it cannot: L / T* at the most."""
        side = 1 if temperature < 1 else -1
        if side == -self.degenerate_side:
            self.degenerate_step = math.sqrt(self.degenerate_step)
        self.degenerate_side = side
        asked = temperature if side < 0 else 1 / temperature if temperature else math.inf
        wanted = self.degenerate_drift * min(self.degenerate_step, asked) ** side
        drift = min(max(wanted, 1 / DEGENERATE_TOTAL), DEGENERATE_TOTAL)
        constant, self.degenerate_drift = self.constant * drift / self.degenerate_drift, drift
        return constant

    @property
    @abstractmethod
    def settled(self) -> bool:
        """Whether L has stopped moving, and not only because its degenerate steps are used up."""

    @property
    def final(self) -> float:
        """L*, the constant to freeze."""
        return self.constant


@dataclass
class PaperFeedback(Feedback):
    """The paper's rule and stop to the letter: L <- L / T*, until L has moved by less than epsilon over W epochs."""

    window: int = 30
    tolerance: float = 0.001

    def __post_init__(self) -> None:
        if self.window < 2:
            raise UserError(f"expected window >= 2, got {self.window}")

    def _moved(self, temperature: float, error: float) -> float:
        return next_constant(self.constant, temperature)

    @property
    def settled(self) -> bool:
        """The stop of Sec. 4.3."""
        return self.steered and has_settled(self.constants, window=self.window, tolerance=self.tolerance)


@dataclass
class SteadyFeedback(Feedback):
    """A feedback that knows its own error: log L <- log L - g log T*, with a gain g that listens to T*.

    While T* stays on one side of 1 the signal is consistent, and g grows up to 1, the paper's rule. Where it changes
    sides L is about right, or answers late, and the rest is noise: g is halved (Kesten's rule, with Rprop's recovery),
    down to 1 / e after e epochs, which is plain averaging. A signal whose mean over five epochs exceeds its error is no
    such noise, and takes g back up to a quarter.
    A step away from 1 is bounded, so that an untrained network, which always looks under-confident, cannot throw L far
    above L*; a step back towards 1 is not, so that a poor L0 is forgotten after an epoch.
    It has settled once the rest of the budget will move L by less than the calibration set can resolve. L* is then not
    the last L but the end of the trend of what the last epochs asked for: a single noisy epoch cannot spoil it, and it
    does not lag behind a network that still learns. Where Phase II will bring the learning rate down to zero, the trend
    ends there.
    """

    gain: float = 1.0
    side: float = 0.0  # the sign of the last log T*
    asked: list[float | None] = field(default_factory=list)  # log (L / T*), what each epoch asked for, if it could
    last: float = 1.0  # the last T*, whether it could or not
    recent: list[float] = field(default_factory=list)  # the last few -log T*
    error: float = 0.0  # the standard error of the last log T*
    budget: int = 0  # the most epochs that Phase I may take, if that is known
    ahead: float = 0.0  # how many more epochs of Phase I would have brought the learning rate down to zero

    def update(self, temperature: float, error: float = 0.0) -> float:
        """Move L, and remember what was asked for."""
        before, self.last = math.log(self.constant), temperature
        after = super().update(temperature, error)
        self.asked.append(before - math.log(temperature) if self.steered else None)
        return after

    def _can_steer(self, temperature: float, error: float) -> bool:
        return super()._can_steer(temperature, error) and error < UNKNOWN

    def _drifted(self, temperature: float, error: float) -> float:
        """Held while T* is not known beyond its error: a network that has learned nothing yet learns no better at a
        smaller L, and would be led to its floor before it begins."""
        asked = math.inf if temperature == 0 else abs(math.log(temperature))
        return super()._drifted(temperature, error) if asked > error else self.constant

    def _moved(self, temperature: float, error: float) -> float:
        wanted = -math.log(temperature)
        side = math.copysign(1.0, wanted) if wanted else 0.0
        self.gain = self.gain * CAUTION if side * self.side < 0 else self.gain * CONFIDENCE
        self.recent = [*self.recent[1 - PERSISTENT :], wanted]
        if len(self.recent) == PERSISTENT and abs(sum(self.recent)) > PERSISTENT * error:
            self.gain = max(self.gain, RESUMED)  # for so many epochs beyond its error: no noise, but a way to go
        # never less than plain averaging would take, or much noise would leave L where it happens to be
        epochs = 1 + sum(request is not None for request in self.asked)
        self.gain = min(1.0, max(self.gain, 1 / epochs))
        self.side, self.error = side or self.side, error
        now, most = math.log(self.constant), math.log(LARGEST_STEP)
        return math.exp(min(max(now + self.gain * wanted, min(now, 0.0) - most), max(now, 0.0) + most))

    @property
    def settled(self) -> bool:
        """Whether the movement that is left lies below the calibration set's resolution."""
        return self.steered and is_resolved(self.constants, self.error, budget=self.budget)

    @property
    def final(self) -> float:
        """The end of the trend of log (L / T*) over the last fifth of the epochs; after a tiny budget, the last one.

        Where T* knew nothing throughout, it is what the last T* asks for, within the total of degenerate steps.
        It is not bounded as a step is: no training at this L is to follow but Phase II's, and all of it may be needed.
        """
        recent = self.asked[-max(1, len(self.asked) // FINAL_SHARE) :]
        requests = {epoch: request for epoch, request in enumerate(recent) if request is not None}
        if not requests or 2 * len(requests) < len(recent):  # T* could hardly steer
            # who is no better than chance says so; downwards only: that no sample is misclassified proves little
            return self.constant / min(max(self.last, 1.0), DEGENERATE_TOTAL * self.degenerate_drift)
        if len(requests) < 3:  # a line through two points does not average
            return math.exp(list(requests.values())[-1])
        slope, intercept = linear_regression(list(requests), list(requests.values()))
        return math.exp(intercept + slope * (len(recent) - 1 + self.ahead))
