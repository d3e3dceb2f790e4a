"""Robust accuracy and calibration under real attacks, held against the certificate sample by sample."""

import hashlib
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lipscale._random import random_stream
from lipscale.attacks import autoattack, calibration_attack, pgd
from lipscale.attacks.ball import Box, distances
from lipscale.certificates.accuracy import epsilon_names
from lipscale.certificates.certificate import Certificate
from lipscale.certificates.network import certify
from lipscale.data import Samples, as_input
from lipscale.errors import UnsoundError, UserError
from lipscale.layers.evaluation import evaluation_mode
from lipscale.metrics import ece
from lipscale.metrics.binned import bins_for
from lipscale.metrics.intervals import Interval, share_interval

AttackName = Literal["pgd", "autoattack"]
Cache = Callable[[str], MutableMapping[str, Tensor]]  # a place for what is finished, by name
BATCH = 250


@dataclass(frozen=True)
class Attack:
    """What to attack with; the defaults are quick."""

    name: AttackName = "pgd"
    steps: int = 40  # of PGD, and half as many of each calibration attack
    restarts: int = 2  # of PGD
    seed: int = 0


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
    certificate: Certificate | None = None,
    cache: Cache = lambda name: {},
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Robustness:
    """Certified and empirical robust accuracy, and calibration under attack, at every epsilon on the same samples.

    What is held against the attacks is the network's own certificate, unless another is given. A certified sample that
    an attack breaks, or a confidence that leaves its certified range, is an UnsoundError.
    """
    if not epsilons or any(eps <= 0 for eps in epsilons):
        raise UserError(f"an attack needs epsilon > 0, got {list(epsilons)}")
    inputs, labels = as_input(samples.inputs), samples.labels.long()
    with evaluation_mode(net):
        certificate = certificate or certify(net, inputs)
        logits = torch.cat([net(batch) for batch in inputs.split(BATCH)])
        radii = certificate.radius(logits, labels)
        weights = digest(net, inputs, labels)
        rows = {}
        for name, eps in zip(epsilon_names(epsilons), epsilons, strict=True):
            kept = cache(f"{attack.name}-{name}-{_digest_text(weights, attack, eps, box, _versions(attack))}")

            def progress(part: str, done: int, total: int, name: str = name) -> None:
                on_progress(f"{part} at {name}", done, total)

            broken_at = _break(net, inputs, labels, eps, attack, box, kept, progress)
            certified = (radii >= eps) & (radii > 0)
            _require_order(certified, radii, broken_at, name)
            robust = broken_at.isinf() | certified
            share = float(robust.double().mean())
            rows[name] = RobustnessAt(
                samples=len(labels),
                certified_accuracy=float(certified.double().mean()),
                robust_accuracy=share,
                interval=share_interval(share, len(labels)),
                calibration=_calibration(net, certificate, inputs, labels, eps, attack, box, progress),
            )
    return Robustness(
        attack=attack.name,
        seed=attack.seed,
        steps=attack.steps if attack.name == "pgd" else None,
        restarts=attack.restarts if attack.name == "pgd" else None,
        samples=len(labels),
        accuracy=float((logits.argmax(1) == labels).double().mean()),
        at=rows,
    )


def _break(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    epsilon: float,
    attack: Attack,
    box: Box | None,
    kept: MutableMapping[str, Tensor],
    progress: Callable[[str, int, int], None],
) -> Tensor:
    """The distance at which each sample was misclassified: 0 where it was to begin with, inf where no attack did."""
    if "distance" in kept:
        return kept["distance"].to(inputs.device)
    if attack.name == "autoattack":
        points = autoattack(
            net,
            inputs,
            labels,
            epsilon=epsilon,
            seed=attack.seed,
            batch_size=BATCH,
            finished=kept,
            on_batch=lambda done, total: progress("AutoAttack", done, total),
        )
    else:
        points = inputs.clone()
        batches = list(torch.arange(len(inputs), device=inputs.device).split(BATCH))
        for k, batch in enumerate(batches):
            if f"pgd-{k}" not in kept:
                kept[f"pgd-{k}"] = pgd(
                    net,
                    inputs[batch],
                    labels[batch],
                    epsilon=epsilon,
                    steps=attack.steps,
                    restarts=attack.restarts,
                    box=box,
                    generator=random_stream(attack.seed, "pgd", k),
                )
            points[batch] = kept[f"pgd-{k}"].to(inputs)
            progress("PGD", k + 1, len(batches))
    wrong = torch.cat([net(b).argmax(1) for b in points.split(BATCH)]) != labels
    distance = torch.where(wrong, distances(points, inputs), torch.inf)
    kept["distance"] = distance
    for key in set(kept) - {"distance"}:  # the points have served, and are large
        del kept[key]
    return distance


def _require_order(certified: Tensor, radii: Tensor, broken_at: Tensor, epsilon: str) -> None:
    """CRA <= ERA, sample by sample: nothing certified may be broken within its radius."""
    # an attack may overshoot epsilon by a rounding error; beyond the radius nothing was promised
    inverted = certified & (broken_at <= radii)
    if inverted.any():
        sample = int(inverted.nonzero()[0])
        raise UnsoundError(
            f"the certificate is broken at epsilon {epsilon}: attacked sample {sample} has certified radius "
            f"{float(radii[sample]):.6g} and was misclassified at distance {float(broken_at[sample]):.6g} "
            f"({int(inverted.sum())} such samples). Do not rely on this certificate, and please report it"
        )


def _calibration(
    net: nn.Module,
    certificate: Certificate,
    inputs: Tensor,
    labels: Tensor,
    epsilon: float,
    attack: Attack,
    box: Box | None,
    progress: Callable[[str, int, int], None],
) -> CalibrationUnderAttack:
    """ECE and mean confidence before and after each calibration attack, and the proven range of the latter."""
    found: dict[str, list[Tensor]] = {"clean": [], "over": [], "under": [], "maximum": []}
    ends: list[Tensor] = []
    batches = list(zip(inputs.split(BATCH), labels.split(BATCH), strict=True))
    for k, (x, y) in enumerate(batches):
        attacked = calibration_attack(
            net,
            x,
            y,
            epsilon=epsilon,
            steps=max(1, attack.steps // 2),
            box=box,
            generator=random_stream(attack.seed, "calibration", k),
        )
        clean = net(x)
        lower, upper = certificate.confidence(clean, epsilon)
        ends.append(torch.stack((lower, upper)))
        found["clean"].append(clean)
        for kind, points in attacked._asdict().items():
            z = net(points)
            p = torch.softmax(z.double(), 1).gather(1, clean.argmax(1, keepdim=True)).squeeze(1)
            # rounding may take a point a little beyond epsilon: it is held against the range at its own distance
            least, most = certificate.confidence(clean, distances(points, x).clamp(min=epsilon))
            if not ((least <= p) & (p <= most)).all():
                raise UnsoundError(
                    f"the certified confidence is broken at epsilon {epsilon:.4g} by the {kind} attack. "
                    "Do not rely on this certificate, and please report it"
                )
            found[kind].append(z)
        progress("calibration attacks", k + 1, len(batches))
    bins = bins_for(len(labels))
    rows = {}
    for kind, parts in found.items():
        z = torch.cat(parts)
        confidence = float(torch.softmax(z.double(), 1).amax(1).mean())
        rows[kind] = Confidence(ece(z, labels, bins), confidence)
    lower, upper = torch.cat(ends, 1).mean(1).tolist()
    return CalibrationUnderAttack(**rows, certified_confidence=(lower, upper))


def digest(net: nn.Module, inputs: Tensor, labels: Tensor) -> str:
    """A name for these weights on these samples."""
    hasher = hashlib.sha256()
    tensors = [*net.state_dict().values(), inputs, labels]
    for tensor in tensors:
        hasher.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        hasher.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return hasher.hexdigest()


def _versions(attack: Attack) -> tuple[str, ...]:
    """A mended attack does not answer from what an older one left behind."""
    names = ("lipscale", "pyautoattack") if attack.name == "autoattack" else ("lipscale",)
    return tuple(version(name) for name in names)


def _digest_text(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
