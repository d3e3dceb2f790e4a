"""How far an attack had to go to break each sample; what is finished is kept, so that a killed attack goes on."""

import hashlib
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lipscale._random import random_stream
from lipscale.attacks import autoattack, pgd
from lipscale.attacks.ball import Box, distances
from lipscale.certificates.held import BATCH, Progress
from lipscale.certificates.proof import Proof

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
    attack: Attack
    box: Box | None
    on_progress: Progress

    def cache_name(self, weights: str, label: str) -> str:
        """Under which name the finished parts are kept; an attack that was mended has another."""
        packages = ("lipscale", "pyautoattack") if self.attack.name == "autoattack" else ("lipscale",)
        parts = (weights, self.attack, self.epsilon, self.box, tuple(map(version, packages)))
        return f"{self.attack.name}-{label}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"

    def broken_at(self, kept: Kept) -> Tensor:
        """The distance at which each sample was misclassified: 0 where it was at once, inf where no attack did it."""
        if "distance" in kept:
            return kept["distance"].to(self.inputs.device)
        points = self._autoattack(kept) if self.attack.name == "autoattack" else self._pgd(kept)
        wrong = self.proof(points).logits.argmax(1) != self.labels
        kept["distance"] = distance = torch.where(wrong, distances(points, self.inputs), torch.inf)
        for key in set(kept) - {"distance"}:  # the points have served, and are large
            del kept[key]
        return distance

    def _autoattack(self, kept: Kept) -> Tensor:
        return autoattack(
            self.net,
            self.inputs,
            self.labels,
            epsilon=self.epsilon,
            seed=self.attack.seed,
            batch_size=BATCH,
            finished=kept,
            on_batch=partial(self.on_progress, "AutoAttack"),
        )

    def _pgd(self, kept: Kept) -> Tensor:
        """PGD batch by batch."""
        batches = list(zip(self.inputs.split(BATCH), self.labels.split(BATCH), strict=True))
        how: Any = {"epsilon": self.epsilon, "steps": self.attack.steps, "restarts": self.attack.restarts}
        for k, (x, y) in enumerate(batches):
            if f"pgd-{k}" not in kept:
                stream = random_stream(self.attack.seed, "pgd", k)
                kept[f"pgd-{k}"] = pgd(self.net, x, y, **how, box=self.box, generator=stream)
            self.on_progress("PGD", k + 1, len(batches))
        return torch.cat([kept[f"pgd-{k}"].to(self.inputs) for k in range(len(batches))])


def digest(net: nn.Module, inputs: Tensor, labels: Tensor) -> str:
    """A name for these weights on these samples."""
    hasher = hashlib.sha256()
    for tensor in [*net.state_dict().values(), inputs, labels]:
        hasher.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        hasher.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return hasher.hexdigest()
