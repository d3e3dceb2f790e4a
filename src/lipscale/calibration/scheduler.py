"""L scheduled as torch schedules a learning rate: a step an epoch, by what a calibration set says."""

import logging
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lipscale.bounds import get_lipschitz, set_lipschitz
from lipscale.calibration.advice import cannot_steer, poor_resolution
from lipscale.calibration.feedback import Feedback, PaperFeedback, SteadyFeedback
from lipscale.calibration.temperature import cautious_temperature, fit_temperature, measure_temperature
from lipscale.errors import UserError

log = logging.getLogger("lipscale")

# of L in a step: only a poor L0 falls so far
NOTABLE_FALL = 0.5


@dataclass(frozen=True)
class CalibrationStep:
    """What one step measured on the calibration set."""

    temperature: float  # T*, which moved L
    temperature_error: float  # the standard error of log T*
    accuracy: float


class LipschitzScheduler:
    """Moves L by the temperature T* of a calibration set, about L <- L / T*, until no correction is left (Sec. 4.1).

    Use it as `ReduceLROnPlateau`: once an epoch, in evaluation mode, with the logits of data that are not trained on.
    When it has converged, or time is up, `freeze()` sets L*; then all data may be trained on (Phase II).

    Args:
        net: A network with scaled layers; its logits scale with L, exactly.
        rule: "steady" allows for the error of T*; "paper" is L <- L / T* to the letter, with the stop of Sec. 4.3.
        lipschitz: L0; left out, the constant that the network has.
        optimizer: Its memory of larger gradients is scaled down where L falls a lot. Adam and AdamW have such a memory.
        epochs: Of the steady rule: the most steps that it will be given, if that is known.
        ahead: Of the steady rule: after how many more steps the learning rate would be zero; L* looks ahead to there.
        window: Of the paper's stop: over this many steps ...
        tolerance: ... L moves by less than this share of its mean.

    Example:
        >>> import torch, lipscale
        >>> net = lipscale.models.mlp(num_classes=2, input_shape=3, width=8)
        >>> scheduler = lipscale.LipschitzScheduler(net, rule="paper", lipschitz=1.0)
        >>> inputs, labels = torch.randn(64, 3), torch.randint(2, (64,))
        >>> with lipscale.evaluation_mode(net):
        ...     constant = scheduler.step(net(inputs), labels)
        >>> scheduler.converged, abs(lipscale.get_lipschitz(net) / constant - 1) < 1e-5
        (False, True)
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        rule: Literal["steady", "paper"] = "steady",
        lipschitz: float | None = None,
        optimizer: Optimizer | None = None,
        epochs: int = 0,
        ahead: float = 0.0,
        window: int = 30,
        tolerance: float = 0.001,
    ) -> None:
        if rule not in ("steady", "paper"):
            raise UserError(f"rule: expected 'steady' or 'paper', got {rule!r}")
        current = get_lipschitz(net)  # an error where the network has no scaled layer
        self.net, self.optimizer = net, optimizer
        if lipschitz is not None:
            set_lipschitz(net, lipschitz)
        start = current if lipschitz is None else lipschitz
        self.feedback: Feedback = (
            SteadyFeedback(start, budget=epochs, ahead=ahead)
            if rule == "steady"
            else PaperFeedback(start, window=window, tolerance=tolerance)
        )
        self.followers: list[tuple[nn.Module, Optimizer]] = []  # networks that are projected together with this one
        self.frozen = False
        self.last: CalibrationStep | None = None
        self.advice: str | None = None  # where the calibration set is too small to know T* well
        self._named: set[bool] = set()  # the directions of a degenerate T* that were logged
        self._moments_at = start  # the L of the gradients that the optimizer remembers

    @property
    def constant(self) -> float:
        """L as it is now."""
        return self.feedback.final if self.frozen else self.feedback.constant

    @property
    def converged(self) -> bool:
        """Whether L has come to rest."""
        return self.feedback.settled

    @torch.no_grad()
    def step(self, logits: Tensor, labels: Tensor) -> float:
        """Measure T* and project the network onto the L that it asks for.

        Args:
            logits: Of the calibration set, (N, C), by the network in evaluation mode.
            labels: Its true classes, (N,).

        Returns:
            The new L.
        """
        if self.frozen:
            raise UserError(f"L is frozen at {self.constant:.4g}: a scheduler takes no step after freeze()")
        logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)  # arrays of numpy's are welcome
        if labels.is_floating_point():
            raise UserError(f"expected labels (N,) of whole numbers, got {labels.dtype}")
        measure = measure_temperature(logits, labels)
        # the paper's T* is the plain minimiser; the error belongs to it just as well
        is_paper = isinstance(self.feedback, PaperFeedback)
        is_all = bool(self.followers)  # all data steer, because there are few
        estimate = fit_temperature if is_paper else cautious_temperature if is_all else None
        temperature = measure.value if estimate is None else estimate(logits, labels)
        size, right = len(labels), int((logits.argmax(1) == labels).sum())
        self.last = CalibrationStep(temperature, measure.error, right / size)
        self._moments_at, before = get_lipschitz(self.net), self.feedback.constant
        constant = self.feedback.update(temperature, measure.error)
        if not self.feedback.steered and (temperature > 1) not in self._named:
            self._named.add(temperature > 1)
            log.warning(cannot_steer(temperature, size=size, wrong=size - right, held=constant == before))
        guessed = int(labels.long().bincount().max()) / size
        # a T* of 0 was named, and is not the one that the error belongs to
        self.advice = (
            None if temperature == 0 else poor_resolution(measure, size, right=right, guessed=guessed, is_all=is_all)
        )
        self._project(constant)
        return constant

    def freeze(self) -> float:
        """Set L*, for good.

        Returns:
            L*, the constant that Phase II keeps.
        """
        self.frozen = True
        if self.advice:
            log.warning(self.advice)
        self._project(self.constant)
        return self.constant

    def _project(self, constant: float) -> None:
        fall = constant / self._moments_at
        for net, optimizer in [(self.net, self.optimizer), *self.followers]:
            if optimizer is not None and fall < NOTABLE_FALL:
                scale_moments(optimizer, fall)
                self._moments_at = constant
            set_lipschitz(net, constant)

    def state_dict(self) -> dict[str, Any]:
        """Plain values, as JSON can hold them; L itself is in the network's own state."""
        return {
            "feedback": asdict(self.feedback),
            "frozen": self.frozen,
            "last": None if self.last is None else asdict(self.last),
            "advice": self.advice,
            "moments_at": self._moments_at,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state of a scheduler with the same rule."""
        self.feedback = type(self.feedback)(**state["feedback"])
        self.frozen, self.advice, self._moments_at = state["frozen"], state["advice"], state["moments_at"]
        self.last = None if state["last"] is None else CalibrationStep(**state["last"])


def scale_moments(optimizer: Optimizer, factor: float) -> None:
    """Let Adam, or Muon, believe that its past gradients were smaller by this factor.

    Gradients are proportional to L, since f_L = L f_1, and Adam divides by what it remembers of them. In a short run
    that is all of it: after an epoch at ten times the L every later step would be too small. The other way round
    there is nothing to do: larger gradients outweigh the memory of smaller ones at once. Nor is there after small
    falls, or an L that wanders up and down would make the steps larger and larger.
    """
    for moments in optimizer.state.values():
        if "momentum" in moments:
            moments["momentum"] *= factor
        elif "exp_avg" in moments and "exp_avg_sq" in moments:
            moments["exp_avg"] *= factor
            moments["exp_avg_sq"] *= factor**2
