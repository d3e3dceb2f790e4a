"""The optimizers: AdamW on a plan for a given number of epochs, and the paper's AdamW-ScheduleFree."""

from collections.abc import Iterable
from typing import Any

import torch
from schedulefree import AdamWScheduleFree
from torch import nn

from lipscale.settings import TrainingSettings

# relative to the size of a weight for the plan, absolute for ScheduleFree
DEFAULT_LEARNING_RATE = {"planned": 0.2, "schedulefree": 1e-3}
# of an unconstrained network, absolute for both
UNCONSTRAINED_LEARNING_RATE = {"planned": 2e-3, "schedulefree": 1e-3}
# biases start at zero and have no size to be relative to
BIAS_SIZE = 0.1


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

    def train(self) -> None:
        """Nothing to do: the weights that train are those that are measured."""

    def eval(self) -> None:
        """Nothing to do, likewise."""


def set_share(optimizer: Any, share: float) -> None:
    """Step with this share of the learning rate from now on; ScheduleFree needs no plan."""
    if isinstance(optimizer, PlannedAdamW):
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * share


def default_learning_rate(settings: TrainingSettings) -> float:
    """What serves the optimizer and the kind of network that the settings name."""
    rates = DEFAULT_LEARNING_RATE if settings.is_constrained else UNCONSTRAINED_LEARNING_RATE
    return rates[settings.optimizer]


def new_optimizer(net: nn.Module, settings: TrainingSettings) -> Any:
    """The optimizer that the settings name, for the network's trainable parameters."""
    trainable = [p for p in net.parameters() if p.requires_grad]
    rate = settings.learning_rate or default_learning_rate(settings)
    if settings.optimizer == "planned":
        relative = settings.is_constrained
        return PlannedAdamW(trainable, learning_rate=rate, weight_decay=settings.weight_decay, relative=relative)
    return AdamWScheduleFree(
        trainable, lr=rate, weight_decay=settings.weight_decay, warmup_steps=settings.warmup_steps or 0
    )


def _size(parameter: nn.Parameter) -> float:
    return float(parameter.detach().square().mean().sqrt()) or BIAS_SIZE
