"""Attacks on what is proven: how far one had to go to break each sample, and one check of all that it finds.

No class may change within its radius, no probability may leave its range. Attacks search with the network as it is;
what they find is judged in the arithmetic that the proof is about. What is finished is kept: a killed attack goes on.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lipscale._random import random_stream
from lipscale.attacks import autoattack, pgd
from lipscale.attacks.ball import Box, distances
from lipscale.certificates.certificate import Certificate
from lipscale.certificates.proof import Proof
from lipscale.certificates.threshold import Shifted, Threshold, decided

BATCH = 250
UNDERFLOW = 1e-300  # where exponentials underflow, and what remains is no probability to speak of
PointsFor = Callable[[Tensor, int], Mapping[str, Tensor]]  # (rows, number of the batch) -> points, by attack
Progress = Callable[[str, int, int], None]  # what is being done, how much of it is, out of how much
AttackName = Literal["pgd", "autoattack"]
Kept = MutableMapping[str, Tensor]
Cache = Callable[[str], Kept]  # a place for what is finished, by name


@dataclass(frozen=True)
class Attack:
    """What to attack with; the defaults are quick."""

    name: AttackName = "pgd"
    steps: int = 40  # of PGD, and half as many of each calibration attack
    restarts: int = 2  # of PGD
    seed: int = 0


@dataclass(frozen=True)
class Trial:
    """One attack on labelled inputs at one epsilon."""

    net: nn.Module
    proof: Proof
    inputs: Tensor  # (N, ...)
    labels: Tensor  # (N,)
    epsilon: float
    name: str  # of the epsilon
    attack: Attack
    box: Box | None
    cache: Cache
    on_progress: Progress
    threshold: Threshold | None = None  # what is attacked is the answer with it

    def tell(self, what: str, done: int, total: int) -> None:
        """Report progress."""
        self.on_progress(f"{what} at {self.name}", done, total)

    def _kept(self) -> Kept:
        """Where finished parts are kept: other weights or samples, or an attack that was mended, have another place."""
        hasher = hashlib.sha256()
        for tensor in [*self.net.state_dict().values(), self.inputs, self.labels]:
            hasher.update(str((tuple(tensor.shape), tensor.dtype)).encode())
            hasher.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        packages = ("lipscale", "pyautoattack") if self.attack.name == "autoattack" else ("lipscale",)
        decision = () if self.threshold is None else (self.threshold,)
        parts = (hasher.hexdigest(), self.attack, self.epsilon, self.box, tuple(map(version, packages)), *decision)
        place = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        return self.cache(f"{self.attack.name}-{self.name}-{place}")

    def broken_at(self) -> Tensor:
        """The distance at which each sample was misclassified: 0 where it was at once, inf where no attack did it."""
        kept = self._kept()
        if "distance" in kept:
            return kept["distance"].to(self.inputs.device)
        points = self._autoattack(kept) if self.attack.name == "autoattack" else self._pgd(kept)
        wrong = decided(self.proof(points), self.threshold)[0] != self.labels
        kept["distance"] = distance = torch.where(wrong, distances(points, self.inputs), torch.inf)
        for key in set(kept) - {"distance"}:  # the points have served, and are large
            del kept[key]
        return distance

    @property
    def _answering(self) -> nn.Module:
        """The network whose largest logit is the answer."""
        return self.net if self.threshold is None else Shifted(self.net, self.threshold)

    def _autoattack(self, kept: Kept) -> Tensor:
        return autoattack(
            self._answering,
            self.inputs,
            self.labels,
            epsilon=self.epsilon,
            seed=self.attack.seed,
            batch_size=BATCH,
            finished=kept,
            on_batch=partial(self.tell, "AutoAttack"),
        )

    def _pgd(self, kept: Kept) -> Tensor:
        """PGD batch by batch."""
        batches = list(zip(self.inputs.split(BATCH), self.labels.split(BATCH), strict=True))
        how: Any = {"epsilon": self.epsilon, "steps": self.attack.steps, "restarts": self.attack.restarts}
        for k, (x, y) in enumerate(batches):
            if f"pgd-{k}" not in kept:
                stream = random_stream(self.attack.seed, "pgd", k)
                kept[f"pgd-{k}"] = pgd(self._answering, x, y, **how, box=self.box, generator=stream)
            self.tell("PGD", k + 1, len(batches))
        return torch.cat([kept[f"pgd-{k}"].to(self.inputs) for k in range(len(batches))])


@dataclass(frozen=True)
class Held:
    """What an attack found for a batch, held against the certificate."""

    logits: Tensor  # (B, C), at the points that were found
    distance: Tensor  # (B,), of the points from the inputs
    broken: Tensor  # (B,): another class within the certified radius, or a probability out of its certified range


def attack_batches(
    proof: Proof, inputs: Tensor, epsilon: Tensor, attack: PointsFor, *, batch: int = BATCH
) -> Iterator[tuple[Certificate, dict[str, Held]]]:
    """Attack batch by batch; yields a batch's certificate, and what each attack did to it. `epsilon` is (N,)."""
    for k, rows in enumerate(torch.arange(len(inputs), device=inputs.device).split(batch)):
        x, eps = inputs[rows], epsilon[rows]
        certificate = proof(x)
        yield certificate, {name: hold(proof, certificate, x, found, eps) for name, found in attack(rows, k).items()}


def hold(proof: Proof, certificate: Certificate, inputs: Tensor, points: Tensor, epsilon: Tensor) -> Held:
    """Hold points near the inputs against the inputs' certificate."""
    predicted = certificate.logits.argmax(1)
    logits, distance = proof(points).logits, distances(points, inputs)
    p = torch.softmax(logits, 1)
    # rounding may take a point a little beyond epsilon: it is held against the ranges at its own distance
    lower, upper = certificate.probabilities(torch.maximum(distance, epsilon.double()))
    changed = (logits.argmax(1) != predicted) & within(certificate.radius(), distance)
    return Held(logits, distance, changed | ~((lower <= p) & (p <= upper + UNDERFLOW)).all(1))


def within(radii: Tensor, distance: Tensor) -> Tensor:
    """Whether a distance is within a certified radius; beyond it nothing was promised, and inf is no distance."""
    return (radii > 0) & (distance <= radii) & distance.isfinite()
