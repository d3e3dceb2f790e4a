"""Margins, certified radii, certified confidence: what no small change of the input can undo."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipscale.bounds import Walk, lipschitz_bound
from lipscale.errors import UserError
from lipscale.export import export_plain
from lipscale.layers import OrthoLinear
from lipscale.mode import evaluation_mode

# The rounding allowance: on a few inputs the gap between float32 and float64 logits is measured, and this many
# times the largest one is taken as the most that any logit can be off.
ROUNDING_FACTOR = 4
ROUNDING_SAMPLES = 8


@dataclass(frozen=True)
class Certificate:
    """What is proven about a network: |(z_k - z_j)(x) - (z_k - z_j)(x')| <= pairwise[k, j] ||x - x'||.

    pairwise[k, j] = min(sqrt(2) B, ||w_k - w_j|| B_features): two logits of a jointly B-Lipschitz network differ by a
    sqrt(2) B-Lipschitz function, and behind a linear head by one of its own. `rounding` is the most by which float32
    may move the difference of two logits at x and at x' together.
    """

    bound: float
    pairwise: Tensor  # (C, C), float64
    rounding: float

    @classmethod
    @torch.no_grad()
    def of(cls, net: nn.Module, inputs: Tensor) -> Self:
        """Certify a network; the inputs serve to measure rounding and the number of classes."""
        if len(inputs) == 0 or not inputs.isfinite().all():
            raise UserError("a certificate needs finite inputs to measure rounding on")
        with evaluation_mode(net):
            bound = lipschitz_bound(net)
            few = inputs[:ROUNDING_SAMPLES]
            logits = net(few)
            exact = export_plain(net).double()(few.double())
        gap = float((logits - exact).abs().max())
        classes = logits.shape[1]
        pairwise = torch.full((classes, classes), math.sqrt(2) * bound, dtype=torch.float64, device=inputs.device)
        return cls(bound, _with_head(net, pairwise), 4 * ROUNDING_FACTOR * gap)

    def radius(self, logits: Tensor, labels: Tensor | None = None) -> Tensor:
        """R_cert(x) = 1[prediction = y] min_j (z_y - z_j) / K_yj (Sec. 2.1, pair by pair). (N, C) -> (N,), float64.

        Without labels y is the predicted class. With them a wrong prediction has radius zero.
        """
        chosen = logits.argmax(1) if labels is None else labels.long()
        gaps = _gaps(logits, chosen) - self.rounding
        gaps.scatter_(1, chosen.unsqueeze(1), math.inf)  # y does not compete with itself
        return (gaps / self.pairwise[chosen]).amin(1).clamp(min=0)

    def confidence(
        self, logits: Tensor, epsilon: float | Tensor, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The range in which p_k stays for every change up to epsilon, k the predicted (or given) class.

        p_k(x') lies between 1 / (1 + sum_{j != k} exp(-(z_k - z_j) + K_kj eps)) and the same with -K_kj eps.
        """
        eps = torch.as_tensor(epsilon, dtype=torch.float64, device=logits.device).reshape(-1, 1)  # one, or (N,)
        if not ((eps >= 0) & eps.isfinite()).all():
            raise UserError(f"expected epsilon >= 0, got {epsilon}")
        chosen = logits.argmax(1) if labels is None else labels.long()
        gaps, reach = _gaps(logits, chosen), self.pairwise[chosen] * eps + self.rounding
        others = 1 - F.one_hot(chosen, logits.shape[1])
        lower, upper = ((others * torch.exp(sign * reach - gaps)).sum(1) for sign in (1, -1))
        return 1 / (1 + lower), 1 / (1 + upper)

    def brier(self, logits: Tensor, labels: Tensor, epsilon: float) -> float:
        """A bound on the Brier score of a set under every change up to epsilon: mean of 2 (1 - lower p_y)^2."""
        lower, _ = self.confidence(logits, epsilon, labels)
        return float((2 * (1 - lower).square()).mean())


def _gaps(logits: Tensor, chosen: Tensor) -> Tensor:
    """z_k - z_j for the chosen class k and all j, in float64: (N, C)."""
    z = logits.double()
    if not z.isfinite().all():
        raise UserError("the logits are not finite: no certificate is possible")
    return z.gather(1, chosen.unsqueeze(1)) - z


def _with_head(net: nn.Module, pairwise: Tensor) -> Tensor:
    """The tighter constants of pairs behind a linear head, where the network ends in one."""
    if not isinstance(net, nn.Sequential) or len(net) == 0 or type(net[-1]) not in (nn.Linear, OrthoLinear):
        return pairwise
    *features, head = net
    walk = Walk({})
    reach = math.prod(map(walk, features))
    weight = cast(Tensor, head.weight).detach().double()
    rows = (weight.unsqueeze(1) - weight.unsqueeze(0)).norm(dim=2)  # ||w_k - w_j||
    return torch.minimum(pairwise, rows.to(pairwise.device) * reach * (1 + 1e-11))


def margin(logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """M(x) = z_y - max_{j != y} z_j; without labels y is the predicted class. (N, C) -> (N,)."""
    chosen = logits.argmax(1) if labels is None else labels.long()
    index = chosen.unsqueeze(1)
    runner_up = logits.scatter(1, index, -math.inf).amax(1)
    return logits.gather(1, index).squeeze(1) - runner_up


@torch.no_grad()
def certified_radius(net: nn.Module, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
    """The l2 distance, in the units of the input, within which no change of an input changes its class.

    With labels, a wrongly classified input has radius zero.
    """
    with evaluation_mode(net):
        return Certificate.of(net, inputs).radius(net(inputs), labels)


@torch.no_grad()
def certified_confidence(net: nn.Module, inputs: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The lower and upper end of the predicted class's probability under every change up to epsilon."""
    with evaluation_mode(net):
        return Certificate.of(net, inputs).confidence(net(inputs), epsilon)


def certified_accuracy(radii: Tensor, epsilons: Sequence[float]) -> dict[str, float]:
    """CRA: the share of samples that are correct and stay so within epsilon, for radii of labelled samples.

    A radius of zero is a wrong prediction (or a tie), so it counts at no epsilon, zero included.
    """
    if any(not 0 <= eps < math.inf for eps in epsilons):
        raise UserError(f"expected every epsilon >= 0, got {list(epsilons)}")
    names = [f"{eps:.4g}" for eps in epsilons]
    if len(set(names)) < len(names):  # closer together than four digits can tell
        names = [repr(float(eps)) for eps in epsilons]
    return {
        name: float(((radii >= eps) & (radii > 0)).double().mean()) for name, eps in zip(names, epsilons, strict=True)
    }


def certified_accuracy_curve(radii: Tensor) -> tuple[Tensor, Tensor]:
    """CRA as a step function of epsilon: where it steps, and its value just up to there."""
    steps = radii[radii > 0].sort().values
    return steps, torch.arange(len(steps), 0, -1, dtype=torch.float64) / len(radii)
