"""The plan of a training: the epochs of each phase, and the learning rate at every step of them."""

from dataclasses import dataclass
from typing import Self

from lipscale.settings import TrainingSettings

WARM_UP = 0.05  # of the plan
# of the learning rate, for Phase II: there L is frozen, and a network that still learned would become under-confident
LEFT_FOR_PHASE_TWO = 0.03


@dataclass(frozen=True)
class Plan:
    """The most epochs of Phase I, those of Phase II, and how the learning rate rises and falls over both."""

    phase1_epochs: int
    phase2_epochs: int
    left: float  # the share of the learning rate that Phase I leaves for Phase II
    warmup_steps: int | None  # none: a share of the plan
    stops_early: bool  # whether Phase I may end before its last epoch, once L has converged

    @classmethod
    def of(cls, settings: TrainingSettings) -> Self:
        """The plan that the settings ask for: without a word on it, Phase II is the last tenth of the budget.

        With `phase1_only` Phase II is planned all the same: Phase I must not learn that nothing follows.
        """
        first, second = settings.epochs, settings.phase2_epochs
        if settings.method != "list":
            second = 0
        elif second is None:
            first, second = settings.epochs - settings.epochs // 10, settings.epochs // 10
        planned = settings.optimizer != "schedulefree"
        return cls(
            first,
            second,
            left=LEFT_FOR_PHASE_TWO if planned and second else 0.0,
            warmup_steps=settings.warmup_steps,
            # the steady rule carries a plan out whole: the learning rate has to come down before L is what it will be
            stops_early=not (planned and settings.feedback == "steady"),
        )

    @property
    def ahead(self) -> float:
        """After how many more epochs of Phase I, at its pace, the learning rate would be zero."""
        return self.phase1_epochs * self.left / (1 - self.left)

    def share(self, phase: int, epoch: int, step: int, steps: int, phase1_done: int) -> float:
        """The share of the learning rate at a step (from 0) of an epoch (from 1) with so many steps."""
        done = epoch - 1 + (step + 0.5) / steps  # the middle of the step: neither the first nor the last is idle
        if phase == 1:
            warm_up = WARM_UP * self.phase1_epochs if self.warmup_steps is None else self.warmup_steps / steps
            return falling_share(done, self.phase1_epochs, warm_up=warm_up, left=self.left)
        # from where Phase I left it, also where that ended early
        start = falling_share(phase1_done, self.phase1_epochs, left=self.left)
        return start * falling_share(done, self.phase2_epochs)


def falling_share(done: float, total: float, *, warm_up: float = 0.0, left: float = 0.0) -> float:
    """The share of the learning rate after `done` of `total` epochs: up over the warm-up, linearly down to `left`."""
    return min(1.0, done / warm_up if warm_up else 1.0) * max(0.0, 1 - (1 - left) * done / total)
