"""Margins, certified radii, certified confidence: what no small change of the input can undo."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

import torch
from torch import Tensor, nn

from lipscale.bounds import Walk, lipschitz_bound
from lipscale.bounds.constant import is_constrained
from lipscale.errors import UserError
from lipscale.layers import OrthoLinear
from lipscale.layers.evaluation import evaluation_mode
from lipscale.models.export import export_plain

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
        if inputs.dtype not in (torch.float32, torch.float64):
            raise UserError(f"certificates need float32 or float64 inputs, got {inputs.dtype}")
        with evaluation_mode(net):
            bound = lipschitz_bound(net)
            sizes = inputs.flatten(1).norm(dim=1)
            few = inputs[sizes.topk(min(ROUNDING_SAMPLES, len(inputs))).indices]  # where rounding is largest
            logits = net(few)
            exact = _in_float64(net)(few.double())
        gap = float((logits - exact).abs().max())
        classes = logits.shape[1]
        pairwise = torch.full((classes, classes), math.sqrt(2) * bound, dtype=torch.float64, device=inputs.device)
        return cls(bound, _with_head(net, pairwise), 4 * ROUNDING_FACTOR * gap)

    @classmethod
    def none(cls, classes: int, *, device: torch.device | None = None) -> Self:
        """What is proven about an unconstrained network: nothing. Radii are zero, confidences anywhere in [0, 1]."""
        pairwise = torch.full((classes, classes), math.inf, dtype=torch.float64, device=device)
        return cls(math.inf, pairwise.fill_diagonal_(0.0), 0.0)

    def radius(self, logits: Tensor, labels: Tensor | None = None) -> Tensor:
        """R_cert(x) = 1[prediction = y] min_j (z_y - z_j) / K_yj (Sec. 2.1, pair by pair). (N, C) -> (N,), float64.

        Without labels y is the predicted class. With them a wrong prediction has radius zero.
        """
        chosen = logits.argmax(1) if labels is None else labels.long()
        gaps = _gaps(logits, chosen) - self.rounding
        gaps.scatter_(1, chosen.unsqueeze(1), math.inf)  # y does not compete with itself
        constants = self.pairwise[chosen]
        # logits that move together (K = 0) never change places
        radii = torch.where(constants > 0, gaps / constants, torch.where(gaps > 0, math.inf, 0.0))
        return radii.amin(1).clamp(min=0)

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
        gaps, reach = _gaps(logits, chosen), _times(self.pairwise[chosen], eps) + self.rounding
        gaps.scatter_(1, chosen.unsqueeze(1), math.inf)  # the sum is over the other classes
        rivals_most, rivals_least = (torch.exp(sign * reach - gaps).sum(1) for sign in (1, -1))
        return 1 / (1 + rivals_most), 1 / (1 + rivals_least)

    def brier(self, logits: Tensor, labels: Tensor, epsilon: float) -> float:
        """A bound on the Brier score of a set under every change up to epsilon: mean of 2 (1 - lower p_y)^2."""
        lower, _ = self.confidence(logits, epsilon, labels)
        return float((2 * (1 - lower).square()).mean())


def certify(net: nn.Module, inputs: Tensor) -> Certificate:
    """The certificate of a network whose layers carry a constant; of an unconstrained one there is none to speak of.

    A product of ordinary layers' norms would be a bound too, but one so large that its radii say nothing.
    """
    if is_constrained(net):
        return Certificate.of(net, inputs)
    with evaluation_mode(net):
        return Certificate.none(net(inputs[:1]).shape[1], device=inputs.device)


def _times(constants: Tensor, eps: Tensor) -> Tensor:
    """K eps, where nothing moves at eps = 0 even if K is infinite."""
    return torch.where(eps > 0, constants * eps, 0.0)


def _gaps(logits: Tensor, chosen: Tensor) -> Tensor:
    """z_k - z_j for the chosen class k and all j, in float64: (N, C)."""
    if logits.ndim != 2 or chosen.shape != logits.shape[:1]:
        shapes = f"logits {tuple(logits.shape)} and labels {tuple(chosen.shape)}"
        raise UserError(f"expected logits (N, C) and labels (N,), got {shapes}")
    if logits.dtype not in (torch.float32, torch.float64):
        raise UserError(f"certificates need float32 or float64 logits, got {logits.dtype}")
    z = logits.double()
    if not z.isfinite().all():
        raise UserError("the logits are not finite: no certificate is possible")
    return z.gather(1, chosen.unsqueeze(1)) - z


def _with_head(net: nn.Module, pairwise: Tensor) -> Tensor:
    """The tighter constants of pairs behind a linear head, where the network ends in one."""
    if not isinstance(net, nn.Sequential) or type(net).forward is not nn.Sequential.forward or len(net) == 0:
        return pairwise
    *features, head = net
    if type(head) not in (nn.Linear, OrthoLinear):
        return pairwise
    walk = Walk({})
    reach = math.prod(map(walk, features))
    weight = cast(Tensor, head.weight).detach().double()
    rows = (weight.unsqueeze(1) - weight.unsqueeze(0)).norm(dim=2)  # ||w_k - w_j||
    return torch.minimum(pairwise, rows.to(pairwise.device) * reach * (1 + 1e-11))


def _in_float64(net: nn.Module) -> nn.Module:
    """The network in double precision: with the same weights where it can be exported, else its own copy."""
    try:
        return export_plain(net).double()
    except UserError:
        return copy.deepcopy(net).double()


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
    return {
        name: float(((radii >= eps) & (radii > 0)).double().mean())
        for name, eps in zip(epsilon_names(epsilons), epsilons, strict=True)
    }


def epsilon_names(epsilons: Sequence[float]) -> list[str]:
    """A name for each epsilon, by which results are listed: four digits, or all where those cannot tell them apart."""
    names = [f"{eps:.4g}" for eps in epsilons]
    return names if len(set(names)) == len(names) else [repr(float(eps)) for eps in epsilons]


def certified_accuracy_curve(radii: Tensor) -> tuple[Tensor, Tensor]:
    """CRA as a step function of epsilon: where it steps, and its value just up to there."""
    steps = radii[radii > 0].sort().values
    return steps, torch.arange(len(steps), 0, -1, dtype=torch.float64) / len(radii)
