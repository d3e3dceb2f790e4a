"""The optimizers: AdamW on a plan for a given number of epochs, and the paper's AdamW-ScheduleFree."""

from collections.abc import Iterable
from typing import Any

import torch
from schedulefree import AdamWScheduleFree
from torch import nn

from lipscale.training.settings import CONSTRAINED, TrainingSettings

# relative to the size of a weight for the plan, absolute for ScheduleFree
DEFAULT_LEARNING_RATE = {"planned": 0.2, "schedulefree": 1e-3}
# of an unconstrained network, absolute for both
UNCONSTRAINED_LEARNING_RATE = {"planned": 2e-3, "schedulefree": 1e-3}
WARM_UP = 0.05  # of the plan
# of the learning rate, for Phase II: there L is frozen, and a network that still learned would become under-confident
LEFT_FOR_PHASE_TWO = 0.03
# biases start at zero and have no size to be relative to
BIAS_SIZE = 0.1
# of L in an epoch: only a poor L0 falls so far
NOTABLE_FALL = 0.5


class PlannedAdamW(torch.optim.AdamW):
    """AdamW at a share of the learning rate that a plan sets, with steps that are relative to the size of each weight.

    An orthogonal layer sees only the direction of its weight, so what counts is how far a step turns it: the learning
    rate of each weight is multiplied by its root mean square at the start. One value then serves all widths.
    Without `relative` it is plain AdamW, for ordinary layers, which see the size of a weight too.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        learning_rate: float,
        weight_decay: float,
        relative: bool = True,
    ) -> None:
        groups: list[dict[str, Any]] = [
            {
                "params": [p],
                "rate": learning_rate * (1.0 if not relative else _size(p) if p.ndim > 1 else BIAS_SIZE),
                "train_mode": False,  # it has no second set of weights, in the words of ScheduleFree
            }
            for p in parameters
        ]
        super().__init__(groups, weight_decay=weight_decay)

    def set_share(self, share: float) -> None:
        """Step with this share of the learning rate from now on."""
        for group in self.param_groups:
            group["lr"] = group["rate"] * share

    def forget_larger(self, factor: float) -> None:
        """Forget how large gradients were, if they are smaller by this factor from now on, and it is below 1/2.

        Gradients are proportional to L, since f_L = L f_1, and Adam divides by what it remembers of them. In a short
        run that is all of it: after an epoch at ten times the L every later step would be too small. The other way
        round there is nothing to do: larger gradients outweigh the memory of smaller ones at once. Nor is there after
        small falls, or an L that wanders up and down would make the steps larger and larger.
        """
        if factor >= NOTABLE_FALL:
            return
        for moments in self.state.values():
            moments["exp_avg"] *= factor
            moments["exp_avg_sq"] *= factor**2

    def train(self) -> None:
        """Nothing to do: the weights that train are those that are measured."""

    def eval(self) -> None:
        """Nothing to do, likewise."""


def planned_share(done: float, total: float, *, warm_up: float = 0.0, left: float = 0.0) -> float:
    """The share of the learning rate after `done` of `total` epochs: up over the warm-up, linearly down to `left`."""
    return min(1.0, done / warm_up if warm_up else 1.0) * max(0.0, 1 - (1 - left) * done / total)


def default_learning_rate(settings: TrainingSettings) -> float:
    """What serves the optimizer and the kind of network that the settings name."""
    rates = DEFAULT_LEARNING_RATE if settings.method in CONSTRAINED else UNCONSTRAINED_LEARNING_RATE
    return rates[settings.optimizer]


def new_optimizer(net: nn.Module, settings: TrainingSettings) -> Any:
    """The optimizer that the settings name, for the network's trainable parameters."""
    trainable = [p for p in net.parameters() if p.requires_grad]
    rate = settings.learning_rate or default_learning_rate(settings)
    if settings.optimizer == "planned":
        relative = settings.method in CONSTRAINED
        return PlannedAdamW(trainable, learning_rate=rate, weight_decay=settings.weight_decay, relative=relative)
    return AdamWScheduleFree(
        trainable, lr=rate, weight_decay=settings.weight_decay, warmup_steps=settings.warmup_steps or 0
    )


def _size(parameter: nn.Parameter) -> float:
    return float(parameter.detach().square().mean().sqrt()) or BIAS_SIZE
