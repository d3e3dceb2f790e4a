"""How far an attack had to go to break each sample; what is finished is kept, so that a killed attack goes on."""

import hashlib
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

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
    inputs: Tensor  # (N, ...)
    labels: Tensor  # (N,)
    epsilon: float
    attack: Attack
    box: Box | None
    on_progress: Progress


def broken_at(trial: Trial, proof: Proof, kept: Kept) -> Tensor:
    """The distance at which each sample was misclassified: 0 where it was to begin with, inf where no attack did."""
    net, inputs, labels = trial.net, trial.inputs, trial.labels
    if "distance" in kept:
        return kept["distance"].to(inputs.device)
    if trial.attack.name == "autoattack":
        points = autoattack(
            net,
            inputs,
            labels,
            epsilon=trial.epsilon,
            seed=trial.attack.seed,
            batch_size=BATCH,
            finished=kept,
            on_batch=lambda done, total: trial.on_progress("AutoAttack", done, total),
        )
    else:
        points = _pgd(trial, kept)
    wrong = proof(points).logits.argmax(1) != labels
    distance = torch.where(wrong, distances(points, inputs), torch.inf)
    kept["distance"] = distance
    for key in set(kept) - {"distance"}:  # the points have served, and are large
        del kept[key]
    return distance


def _pgd(trial: Trial, kept: Kept) -> Tensor:
    """PGD batch by batch."""
    batches = list(zip(trial.inputs.split(BATCH), trial.labels.split(BATCH), strict=True))
    for k, (x, y) in enumerate(batches):
        if f"pgd-{k}" not in kept:
            kept[f"pgd-{k}"] = pgd(
                trial.net,
                x,
                y,
                epsilon=trial.epsilon,
                steps=trial.attack.steps,
                restarts=trial.attack.restarts,
                box=trial.box,
                generator=random_stream(trial.attack.seed, "pgd", k),
            )
        trial.on_progress("PGD", k + 1, len(batches))
    return torch.cat([kept[f"pgd-{k}"].to(trial.inputs) for k in range(len(batches))])


def digest(net: nn.Module, inputs: Tensor, labels: Tensor) -> str:
    """A name for these weights on these samples."""
    hasher = hashlib.sha256()
    tensors = [*net.state_dict().values(), inputs, labels]
    for tensor in tensors:
        hasher.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        hasher.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return hasher.hexdigest()


def cache_name(trial: Trial, weights: str, label: str) -> str:
    """Under which name the finished parts of a trial are kept; an attack that was mended has another."""
    packages = ("lipscale", "pyautoattack") if trial.attack.name == "autoattack" else ("lipscale",)
    parts = (weights, trial.attack, trial.epsilon, trial.box, tuple(map(version, packages)))
    return f"{trial.attack.name}-{label}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"
