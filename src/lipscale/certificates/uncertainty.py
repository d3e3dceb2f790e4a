"""Attacks on uncertainty, held against the certificate: sample by sample, and against the worst case of each metric."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipscale._random import random_stream
from lipscale.attacks import UNCERTAINTY_ATTACKS
from lipscale.attacks.ball import Box
from lipscale.certificates.attacked import BATCH, Held, Progress, attack_batches
from lipscale.certificates.certificate import epsilon_names
from lipscale.certificates.proof import Proof, prove
from lipscale.certificates.worst_case import WorstCase, worst_case
from lipscale.data import Samples, as_input
from lipscale.errors import UnsoundError, UserError
from lipscale.layers.evaluation import evaluation_mode
from lipscale.metrics import Predictions, aurc, ece, nll, selective_risk
from lipscale.metrics.binned import bins_for

STEPS = 20
SUMS = 1e-12  # what the order of a sum may change


@dataclass(frozen=True)
class Uncertainty:
    """How good the probabilities of some points are."""

    accuracy: float
    confidence: float  # the mean
    ece: float
    nll: float
    aurc: float
    selective_risk: float  # of the most confident 80 %

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> "Uncertainty":
        """Measured on logits (N, C)."""
        found = Predictions.of(logits, labels)
        return cls(
            accuracy=float(found.correct.mean()),
            confidence=float(found.confidence.mean()),
            ece=ece(logits, labels, bins_for(len(labels))),
            nll=nll(logits, labels),
            aurc=aurc(logits, labels),
            selective_risk=selective_risk(logits, labels),
        )


@dataclass(frozen=True)
class UncertaintyAt:
    """What attacks did at one epsilon, beside the worst that is possible."""

    attacked: dict[str, Uncertainty]  # by attack
    certified: WorstCase | None  # none where nothing is proven


@dataclass(frozen=True, kw_only=True)
class UncertaintyUnderAttack:
    """What attacks on uncertainty did to some samples; uncertainty.json."""

    seed: int
    steps: int
    samples: int
    clean: Uncertainty
    at: dict[str, UncertaintyAt]  # by epsilon
    test_size: int | None = None  # of the set that the samples are of


def attack_uncertainty(
    net: nn.Module,
    samples: Samples,
    *,
    epsilons: Sequence[float],
    attacks: Sequence[str] = tuple(UNCERTAINTY_ATTACKS),
    steps: int = STEPS,
    seed: int = 0,
    box: Box | None = None,
    proof: Proof | None = None,
    on_progress: Progress = lambda what, done, total: None,
) -> UncertaintyUnderAttack:
    """ECE, NLL, AURC and selective risk before and after attacks on uncertainty, and their certified worst case.

    A sample that leaves its certified class or probabilities, or a metric beyond its worst case, is an UnsoundError.

    Args:
        net: The network, in any mode; it is attacked in evaluation.
        samples: What to attack.
        epsilons: The l2 radii of the attacks, in the units of the input.
        attacks: Among `lipscale.attacks.UNCERTAINTY_ATTACKS`; by default all.
        steps: Of each attack.
        seed: Fixes everything that is random.
        box: The range of input values, (0, 1) for pixels; None where there is none.
        proof: What is held against the attacks; by default it is made of the network.
        on_progress: Called with what is being done, how much of it is done, and out of how much.

    Returns:
        The metrics, by epsilon and attack.

    Example:
        >>> import lipscale, torch
        >>> from lipscale.certificates import attack_uncertainty
        >>> samples = lipscale.data.Samples(torch.rand(20, 4), torch.randint(3, (20,)))
        >>> found = attack_uncertainty(lipscale.models.mlp(3, 4, 8), samples, epsilons=[0.1], attacks=["ace", "loss"])
        >>> found.clean.nll <= found.at["0.1"].attacked["loss"].nll <= found.at["0.1"].certified.nll
        True
    """
    if not epsilons or any(eps <= 0 for eps in epsilons):
        raise UserError(f"an attack needs epsilon > 0, got {list(epsilons)}")
    if unknown := [name for name in attacks if name not in UNCERTAINTY_ATTACKS]:
        raise UserError(f"unknown attack {unknown[0]!r}; known: {', '.join(UNCERTAINTY_ATTACKS)}")
    inputs, labels = as_input(samples.inputs), samples.labels.long()
    with evaluation_mode(net):
        proof = proof or prove(net, inputs.shape[1:])
        proof.require_of(net, inputs)
        trial = _Trial(net, proof, inputs, labels, tuple(attacks), steps, seed, box, on_progress)
        rows = {name: trial.at(eps, name) for name, eps in zip(epsilon_names(epsilons), epsilons, strict=True)}
    clean = Uncertainty.of(proof(inputs).logits, labels)
    return UncertaintyUnderAttack(seed=seed, steps=steps, samples=len(labels), clean=clean, at=rows)


@dataclass(frozen=True)
class _Trial:
    """Attacks on labelled inputs."""

    net: nn.Module
    proof: Proof
    inputs: Tensor
    labels: Tensor
    attacks: tuple[str, ...]
    steps: int
    seed: int
    box: Box | None
    on_progress: Progress

    def at(self, epsilon: float, name: str) -> UncertaintyAt:
        """All attacks at one epsilon, held against what is certified."""

        def points(rows: Tensor, k: int) -> dict[str, Tensor]:
            how: Any = {"epsilon": epsilon, "steps": self.steps, "box": self.box}
            some, found = (self.net, self.inputs[rows], self.labels[rows]), {}
            for kind in self.attacks:
                stream = random_stream(self.seed, kind, k)
                found[kind] = UNCERTAINTY_ATTACKS[kind](*some, **how, generator=stream)
            self.on_progress(f"attacks on uncertainty at {name}", k + 1, -(-len(self.inputs) // BATCH))
            return found

        everywhere = torch.full((len(self.inputs),), epsilon, dtype=torch.float64, device=self.inputs.device)
        held = _joined([found for _, found in attack_batches(self.proof, self.inputs, everywhere, points)])
        # rounding may take a point a little beyond epsilon
        farthest = max([epsilon, *(float(found.distance.max()) for found in held.values())])
        is_proven = math.isfinite(self.proof.bound)
        certified = worst_case(self.proof(self.inputs), self.labels, farthest) if is_proven else None
        measured = {kind: _against(certified, kind, name, found, self.labels) for kind, found in held.items()}
        return UncertaintyAt(measured, certified)


def _joined(batches: Sequence[dict[str, Held]]) -> dict[str, Held]:
    """What each attack found, all batches in one."""

    def join(kind: str) -> Held:
        parts = [batch[kind] for batch in batches]
        return Held(*(torch.cat([getattr(part, name) for part in parts]) for name in Held.__dataclass_fields__))

    return {kind: join(kind) for kind in batches[0]}


def _against(certified: WorstCase | None, kind: str, epsilon: str, held: Held, labels: Tensor) -> Uncertainty:
    """Measure what an attack found, and refuse what cannot be."""
    found = Uncertainty.of(held.logits, labels)
    beyond = [
        f"the {name} is {value:.9g}, and proven to be at most {bound:.9g}"
        for name in ("ece", "nll", "aurc", "selective_risk")
        if certified and (value := getattr(found, name)) > (bound := getattr(certified, name)) + SUMS
    ]
    if held.broken.any():
        rows = held.broken.nonzero().squeeze(1).tolist()
        beyond.append(f"sample {rows[0]} leaves its certified class or probabilities ({len(rows)} such samples)")
    if beyond:
        raise UnsoundError(
            f"the certificate is broken at epsilon {epsilon} by the {kind} attack: {beyond[0]}. "
            "Do not rely on this certificate, and please report it"
        )
    return found
