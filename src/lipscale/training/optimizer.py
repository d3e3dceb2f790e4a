"""The optimizers: Muon and AdamW on a plan for a given number of epochs, and the paper's AdamW-ScheduleFree."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from schedulefree import AdamWScheduleFree
from torch import Tensor, nn

from lipscale.settings import TrainingSettings

# biases start at zero and have no size to be relative to
BIAS_SIZE = 0.1
MUON_BIAS_SIZE = 0.06  # a number's; three times as much cost 3 points of accuracy

MOMENTUM = 0.9
# Odd polynomials a x + b x^3 + c x^5 that, one after the other, bring singular values from (0, 1] near 1: Jordan's
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 3  # two more make the factor more exact and the training no better


class Planned:
    """What ScheduleFree's users call, and an optimizer on a plan has no use for: it has one set of weights."""

    def train(self) -> None:
        """Nothing to do: the weights that train are those that are measured."""

    def eval(self) -> None:
        """Nothing to do, likewise."""


class PlannedAdamW(Planned, torch.optim.AdamW):
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


class PlannedMuon(Planned, torch.optim.Optimizer):
    """Muon (Jordan et al., 2024): all directions of a matrix learn at one pace, however small their gradients.

        m <- mu m + (1 - mu) g,    p <- p - rate polar(mu m + (1 - mu) g),    polar(U S V^T) = U V^T

    An orthogonal layer sees only the direction of its raw matrix, so the rate is relative to the spectral norm that the
    matrix has at the start. A bias is a matrix of one column: its polar factor is the unit vector.
    torch.optim.Muon takes single matrices, neither stacks of frames nor biases, and its steps are not relative.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, learning_rate: float, weight_decay: float) -> None:
        groups = [{"params": [p], "rate": learning_rate * _spectral_size(p), "train_mode": False} for p in parameters]
        super().__init__(groups, {"lr": 0.0, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step for every parameter that has a gradient."""
        for group in self.param_groups:
            (p,) = group["params"]
            if p.grad is None:
                continue
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
            momentum = self.state[p]["momentum"]
            momentum.lerp_(p.grad, 1 - MOMENTUM)
            direction = p.grad.lerp(momentum, MOMENTUM)  # Nesterov's
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.add_(_polar(direction), alpha=-group["lr"])


def _spectral_size(parameter: nn.Parameter) -> float:
    """The largest singular value; of a bias, which starts at zero, a length that its steps are relative to."""
    if parameter.ndim < 2:
        return MUON_BIAS_SIZE * math.sqrt(parameter.numel())
    return float(torch.linalg.matrix_norm(parameter.detach(), 2).max())


def _polar(gradient: Tensor) -> Tensor:
    """About the polar factor of a matrix, or of each in a stack, in bfloat16; of a vector the unit vector."""
    if gradient.ndim < 2:
        return gradient / gradient.norm().clamp_min(1e-30)
    x = gradient.bfloat16()
    if x.shape[-2] > x.shape[-1]:
        return _polar(gradient.mT).mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-30)
    a, b, c = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.to(gradient.dtype)


def set_share(optimizer: Any, share: float) -> None:
    """Step with this share of the learning rate from now on; ScheduleFree needs no plan."""
    for group in optimizer.param_groups:
        if "rate" in group:
            group["lr"] = group["rate"] * share


def new_optimizer(net: nn.Module, settings: TrainingSettings) -> Any:
    """The optimizer that the settings name, for the network's trainable parameters."""
    trainable = [p for p in net.parameters() if p.requires_grad]
    rate = settings.learning_rate
    assert rate is not None  # decided
    if settings.optimizer == "schedulefree":
        return AdamWScheduleFree(
            trainable, lr=rate, weight_decay=settings.weight_decay, warmup_steps=settings.warmup_steps or 0
        )
    if settings.optimizer == "muon":
        return PlannedMuon(trainable, learning_rate=rate, weight_decay=settings.weight_decay)
    relative = settings.is_constrained
    return PlannedAdamW(trainable, learning_rate=rate, weight_decay=settings.weight_decay, relative=relative)


def _size(parameter: nn.Parameter) -> float:
    return float(parameter.detach().square().mean().sqrt()) or BIAS_SIZE
