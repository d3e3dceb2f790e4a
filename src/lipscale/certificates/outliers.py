"""Scores that tell outliers from what a network was trained for, and between which ends an attack can move them.

    probability   the largest probability, as its log-odds (Hendrycks and Gimpel 2017)
    energy        log sum_k exp(z_k) (Liu et al. 2020)
    logit         the largest logit (Hendrycks et al. 2022)
    distance      minus the distance of the features to the nearest class mean

All are larger for inliers. Logits and features move by at most B eps, each in its own norm, and so do the last three.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lipscale.bounds import Walk, is_plain_sequence
from lipscale.certificates.affine import Affine
from lipscale.certificates.forward_error import forward_error
from lipscale.certificates.probabilities import UNIT, highest_log_odds, log_odds, logit_reach, lowest_log_odds
from lipscale.certificates.proof import AT_ONCE, Proof
from lipscale.errors import UserError

SCORES = ("probability", "energy", "logit", "distance")
EXACT = "donot_use_mm_for_euclid_dist"  # a matrix product would lose half of the digits


class Outputs(NamedTuple):
    """What a network says of some inputs: logits (N, C), and the features (N, F) that its head sees."""

    logits: Tensor
    features: Tensor


@dataclass(frozen=True)
class OutlierScores:
    """The scores of a network, with the class means of its features."""

    proof: Proof
    means: Tensor  # (C, F)
    bound: float  # of the features
    error: Affine  # of their arithmetic

    @classmethod
    def of(cls, proof: Proof, inputs: Tensor, labels: Tensor) -> "OutlierScores":
        """Take the class means from training samples.

        Args:
            proof: Of the network.
            inputs: (N, ...), at least one of each class.
            labels: (N,).

        Returns:
            What scores further inputs.

        Example:
            >>> import lipscale, torch
            >>> from lipscale.certificates import OutlierScores, prove
            >>> net, inputs = lipscale.models.mlp(3, 4, 8), torch.rand(9, 4)
            >>> scores = OutlierScores.of(prove(net, (4,)), inputs, torch.arange(9) % 3)
            >>> list(scores(inputs))
            ['probability', 'energy', 'logit', 'distance']
        """
        body, bound, error = _features(proof, tuple(inputs.shape[1:]))
        features = torch.cat([body(chunk.to(proof.dtype)) for chunk in inputs.split(AT_ONCE)]).detach().double()
        classes = len(proof.pairwise)
        if len(labels.unique()) < classes:
            raise UserError(f"expected training samples of all {classes} classes, got {len(labels.unique())}")
        means = torch.stack([features[labels == k].mean(0) for k in range(classes)])
        return cls(proof, means, bound, error)

    def __call__(self, inputs: Tensor) -> dict[str, Tensor]:
        """The scores, by name: (N, ...) -> (N,) in float64, each row by itself."""
        with torch.no_grad():
            parts = [outputs_of(self.proof.net, some.to(self.proof.dtype)) for some in inputs.split(AT_ONCE)]
        found = Outputs(*(torch.cat(part).double() for part in zip(*parts, strict=True)))
        return {name: self.score(name)(found) for name in SCORES}

    def score(self, name: str) -> Callable[[Outputs], Tensor]:
        """One score as a function of what a network says, to be differentiated by an attack."""

        def distance(of: Outputs) -> Tensor:
            return -torch.cdist(of.features, self.means.to(of.features), compute_mode=EXACT).amin(1)

        logits: dict[str, Callable[[Tensor], Tensor]] = {
            "probability": lambda z: log_odds(z).amax(1),
            "energy": lambda z: z.logsumexp(1),
            "logit": lambda z: z.amax(1),
        }
        return distance if name == "distance" else lambda of: logits[name](of.logits)

    def ranges(self, inputs: Tensor, scores: Mapping[str, Tensor], epsilon: float) -> dict[str, tuple[Tensor, Tensor]]:
        """Between which ends each score stays for every change of an input up to epsilon.

        log sum exp is convex and its gradient is p: it falls by at most ||p|| B eps and rises by at most B eps.
        A distance, and the largest logit, move by at most what they are taken of does.
        """
        certificate = self.proof(inputs)
        reach, _ = logit_reach(certificate, epsilon)
        moved = self.bound * epsilon + self.error.at(certificate.norms) + self.error.at(certificate.norms + epsilon)
        rounding = 1e-12 + 32 * UNIT * (certificate.logits.abs().amax(1) + 2 * reach)
        far = scores["distance"].abs()
        slack = (1e-12 + UNIT * self.means.shape[1]) * (1 + far + moved)  # of a root of so many squares
        energy_falls = reach * torch.softmax(certificate.logits, 1).norm(dim=1) * (1 + 1e-12)
        return {
            "probability": (
                lowest_log_odds(certificate, epsilon).amax(1),
                highest_log_odds(certificate, epsilon).amax(1),
            ),
            "energy": (scores["energy"] - energy_falls - rounding, scores["energy"] + reach + rounding),
            "logit": (scores["logit"] - reach - rounding, scores["logit"] + reach + rounding),
            "distance": (scores["distance"] - moved - slack, scores["distance"] + moved + slack),
        }

    def differentiable(self) -> nn.Module:
        """The same network in float32, for attacks to search with; what they find is judged by `__call__`."""
        return copy.deepcopy(self.proof.net).float()


def outputs_of(net: nn.Module, inputs: Tensor) -> Outputs:
    """Logits, and the features before the linear head; of a network without one the logits themselves."""
    if not has_linear_head(net):
        logits = net(inputs)
        return Outputs(logits, logits)
    layers = list(net.children())
    features = nn.Sequential(*layers[:-1])(inputs)
    return Outputs(layers[-1](features), features)


def has_linear_head(net: nn.Module) -> bool:
    """Whether a network ends in a linear layer, behind features that are rows."""
    return isinstance(net, nn.Sequential) and is_plain_sequence(net) and len(net) > 1 and type(net[-1]) is nn.Linear


def _features(proof: Proof, shape: tuple[int, ...]) -> tuple[nn.Module, float, Affine]:
    """The part of a network that makes the features, its Lipschitz bound and its rounding."""
    if not has_linear_head(proof.net):
        return proof.net, proof.bound, proof.error
    body = nn.Sequential(*list(proof.net.children())[:-1])
    if math.isinf(proof.bound):
        return body, math.inf, Affine(0.0, 0.0)
    walk = Walk.over(proof.net, shape)
    return body, math.prod(map(walk, body)), forward_error(body, walk, proof.dtype)
