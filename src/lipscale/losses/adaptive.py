"""Losses that learn from the network's own answers, once an epoch: what they know is part of a training's state."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lipscale.losses.batchwise import avuc_loss, uncertainty_threshold
from lipscale.losses.margin import margin
from lipscale.losses.weights import weighted_mean

MOST_GROUPS, FEWEST_IN_GROUP = 10, 50


class AdaptiveLoss(ABC):
    """A loss with a memory, which `state` holds as plain numbers; none before the first `adapt`."""

    state: Any = None

    @abstractmethod
    def adapt(self, logits: Tensor, labels: Tensor) -> None:
        """Learn from answers of the network in evaluation mode."""

    @abstractmethod
    def __call__(self, logits: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """The mean loss of a batch."""


class AccuracyVersusUncertainty(AdaptiveLoss):
    """AvUC with its threshold, which is measured after the first epochs; until then the cross-entropy."""

    state: float | None

    def __init__(self, *, penalty: float) -> None:
        self.penalty = penalty

    def adapt(self, logits: Tensor, labels: Tensor) -> None:
        """The threshold that these answers ask for."""
        self.state = uncertainty_threshold(logits, labels)

    def __call__(self, logits: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """The mean loss of a batch."""
        if self.state is None:
            return F.cross_entropy(logits, labels, weight=weights)
        return avuc_loss(logits, labels, penalty=self.penalty, threshold=self.state, weights=weights)


class RobustnessSmoothing(AdaptiveLoss):
    """AR-AdaLS: label smoothing by groups of equal robustness, moved by accuracy - confidence (Qin et al., 2021).

    A label gives its class q_r <- clip(q_r + step (acc_r - conf_r), 1 / C, 1), and the others share the rest: less is
    asked for where answers are surer than right. Groups r are of one size among held-out samples, and a training sample
    is in the one that its robustness belongs to. That is the margin divided by `unit`: with sqrt(2) L the certified
    radius, which takes the place of the paper's attack.
    """

    state: dict[str, list[float]] | None

    def __init__(self, *, step: float, unit: Callable[[], float] = lambda: 1.0) -> None:
        self.step, self.unit = step, unit

    def adapt(self, logits: Tensor, labels: Tensor) -> None:
        """Form the groups of these answers, and move what each one's labels give to their class."""
        logits, classes = logits.double(), logits.shape[1]
        count = min(MOST_GROUPS, max(1, len(labels) // FEWEST_IN_GROUP))
        robustness = margin(logits) / self.unit()
        groups = robustness.argsort(stable=True).tensor_split(count)
        p, answer = torch.softmax(logits, 1).max(1)
        before = [1.0] * count if self.state is None else self.state["given"]
        gaps = [float(((answer == labels).double() - p)[group].mean()) for group in groups]
        self.state = {
            "given": [min(max(q + self.step * gap, 1 / classes), 1.0) for q, gap in zip(before, gaps, strict=True)],
            "edges": [float(robustness[group[0]]) for group in groups[1:]],
        }

    def __call__(self, logits: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """The mean loss of a batch."""
        if self.state is None:
            return F.cross_entropy(logits, labels, weight=weights)
        robustness = margin(logits.detach()) / self.unit()
        group = torch.bucketize(robustness, robustness.new_tensor(self.state["edges"]), right=True)
        given = logits.new_tensor(self.state["given"])[group]
        return adaptive_cross_entropy(logits, labels, given=given, weights=weights)


def adaptive_cross_entropy(logits: Tensor, labels: Tensor, *, given: Tensor, weights: Tensor | None = None) -> Tensor:
    """CE to labels that give their class `given` (B,) and each other class an equal share of the rest."""
    log_p = F.log_softmax(logits, 1)
    true = log_p.gather(1, labels.long().unsqueeze(1)).squeeze(1)
    others = (log_p.sum(1) - true) / (logits.shape[1] - 1)
    return weighted_mean(-(given * true + (1 - given) * others), labels, weights)
