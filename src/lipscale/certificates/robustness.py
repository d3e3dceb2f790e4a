"""Robust accuracy and calibration under real attacks, held against the certificate sample by sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipscale._random import random_stream
from lipscale.attacks import calibration_attack
from lipscale.attacks.ball import Box
from lipscale.certificates.attacked import BATCH, Attack, AttackName, Cache, Progress, Trial, attack_batches, within
from lipscale.certificates.certificate import epsilon_names
from lipscale.certificates.proof import Proof, prove
from lipscale.certificates.threshold import Threshold, decided
from lipscale.data import Samples, as_input
from lipscale.errors import UnsoundError, UserError
from lipscale.layers.evaluation import evaluation_mode
from lipscale.metrics import ece
from lipscale.metrics.binned import bins_for
from lipscale.metrics.intervals import Interval, share_interval


@dataclass(frozen=True)
class Confidence:
    """The calibration of one set of points: its ECE and its mean confidence."""

    ece: float
    confidence: float


@dataclass(frozen=True)
class CalibrationUnderAttack:
    """Calibration before and after attacks on the confidence, and between which ends the mean provably stays."""

    clean: Confidence
    over: Confidence
    under: Confidence
    maximum: Confidence
    certified_confidence: Interval


@dataclass(frozen=True)
class RobustnessAt:
    """What an attack left at one epsilon, beside what is certified on the same samples."""

    samples: int
    certified_accuracy: float
    robust_accuracy: float
    interval: Interval  # 95 %, of the robust accuracy
    calibration: CalibrationUnderAttack


@dataclass(frozen=True, kw_only=True)
class Robustness:
    """What one attack did; a part of robustness.json."""

    attack: AttackName
    seed: int
    steps: int | None = None  # of PGD
    restarts: int | None = None
    samples: int
    accuracy: float
    at: dict[str, RobustnessAt]  # by epsilon
    test_size: int | None = None  # of the set that the samples are of


def attack_samples(samples: Samples, count: int, *, seed: int = 0) -> Samples:
    """The subset that is attacked: `count` samples drawn without replacement, whatever order the set is in."""
    order = torch.randperm(len(samples), generator=random_stream(seed, "attack"))
    return samples.take(order[:count].sort().values.to(samples.labels.device))


def measure_robustness(
    net: nn.Module,
    samples: Samples,
    *,
    epsilons: Sequence[float],
    attack: Attack,
    box: Box | None,
    proof: Proof | None = None,
    threshold: Threshold | None = None,
    cache: Cache = lambda name: {},
    on_progress: Progress = lambda what, done, total: None,
) -> Robustness:
    """Certified and empirical robust accuracy, and calibration under attack, at every epsilon on the same samples.

    A certified sample that an attack breaks, or a confidence that leaves its certified range, is an UnsoundError.

    Args:
        net: the network, in any mode; it is attacked in evaluation.
        samples: what to attack, such as `attack_samples(test, 1000)`.
        epsilons: the l2 radii of the attacks, in the units of the input.
        attack: which attack, and how thorough.
        box: the range of input values, (0, 1) for pixels; None where there is none.
        proof: What is held against the attacks; by default it is made of the network.
        threshold: From which probability on the positive one of two classes is answered; calibration has none.
        cache: where the finished parts of each attack are kept, by name.
        on_progress: called with what is being done, how much of it is done, and out of how much.

    Returns:
        The accuracies and calibration errors, by epsilon.

    Example:
        >>> import lipscale, torch
        >>> from lipscale.certificates import Attack, measure_robustness
        >>> net = lipscale.models.mlp(3, 4, 8)
        >>> samples = lipscale.data.Samples(torch.rand(20, 4), torch.randint(3, (20,)))
        >>> found = measure_robustness(net, samples, epsilons=[0.1], attack=Attack(steps=5), box=(0, 1))
        >>> found.at["0.1"].certified_accuracy <= found.at["0.1"].robust_accuracy <= found.accuracy
        True
    """
    if not epsilons or any(eps <= 0 for eps in epsilons):
        raise UserError(f"an attack needs epsilon > 0, got {list(epsilons)}")
    inputs, labels = as_input(samples.inputs), samples.labels.long()
    with evaluation_mode(net):
        proof = proof or prove(net, inputs.shape[1:])
        proof.require_of(net, inputs)
        (answers, radii), rows = decided(proof(inputs), threshold), {}
        right = answers == labels
        for name, eps in zip(epsilon_names(epsilons), epsilons, strict=True):
            trial = Trial(net, proof, inputs, labels, eps, name, attack, box, cache, on_progress, threshold)
            rows[name] = _measure(trial, radii * right)
    is_pgd = attack.name == "pgd"
    return Robustness(
        attack=attack.name,
        seed=attack.seed,
        steps=attack.steps if is_pgd else None,
        restarts=attack.restarts if is_pgd else None,
        samples=len(labels),
        accuracy=float(right.double().mean()),
        at=rows,
    )


def _measure(trial: Trial, radii: Tensor) -> RobustnessAt:
    """What is left at one epsilon. CRA <= ERA, sample by sample: nothing certified may be broken within its radius."""
    broken = trial.broken_at()
    inverted = within(radii, broken)
    if inverted.any():
        sample = int(inverted.nonzero()[0])
        raise UnsoundError(
            f"the certificate is broken at epsilon {trial.name}: attacked sample {sample} has certified radius "
            f"{float(radii[sample]):.6g} and was misclassified at distance {float(broken[sample]):.6g} "
            f"({int(inverted.sum())} such samples). Do not rely on this certificate, and please report it"
        )
    certified = (radii >= trial.epsilon) & (radii > 0)
    left = float((broken.isinf() | certified).double().mean())
    interval = share_interval(left, len(radii))
    return RobustnessAt(len(radii), float(certified.double().mean()), left, interval, _calibration(trial))


def _calibration(trial: Trial) -> CalibrationUnderAttack:
    """ECE and mean confidence before and after each calibration attack, and the proven range of the latter."""
    inputs, labels, epsilon, steps = trial.inputs, trial.labels, trial.epsilon, max(1, trial.attack.steps // 2)

    def points(rows: Tensor, k: int) -> dict[str, Tensor]:
        how: Any = {"epsilon": epsilon, "steps": steps, "box": trial.box}
        stream = random_stream(trial.attack.seed, "calibration", k)
        return calibration_attack(trial.net, inputs[rows], labels[rows], **how, generator=stream)._asdict()

    found: dict[str, list[Tensor]] = {"clean": [], "over": [], "under": [], "maximum": []}
    everywhere = torch.full((len(inputs),), epsilon, dtype=torch.float64, device=inputs.device)
    ends: list[Tensor] = []
    for k, (certificate, attacked) in enumerate(attack_batches(trial.proof, inputs, everywhere, points)):
        found["clean"].append(certificate.logits)
        ends.append(torch.stack(certificate.confidence(epsilon)))
        for kind, held in attacked.items():
            if held.broken.any():
                raise UnsoundError(
                    f"the certified confidence is broken at epsilon {epsilon:.4g} by the {kind} attack. "
                    "Do not rely on this certificate, and please report it"
                )
            found[kind].append(held.logits)
        trial.tell("calibration attacks", k + 1, -(-len(inputs) // BATCH))
    bins, rows = bins_for(len(labels)), {}
    for kind, parts in found.items():
        logits = torch.cat(parts)
        rows[kind] = Confidence(ece(logits, labels, bins), float(torch.softmax(logits, 1).amax(1).mean()))
    lower, upper = torch.cat(ends, 1).mean(1).tolist()
    return CalibrationUnderAttack(**rows, certified_confidence=(lower, upper))
