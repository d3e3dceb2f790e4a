"""Try to break a certificate: attacks inside the radius and the confidence range, and a search for steep slopes."""

import copy
import math
import time
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from lipscale._random import random_stream
from lipscale.attacks import apgd, autoattack, autoattack_installed, calibration_attack
from lipscale.attacks.ball import value_and_gradient
from lipscale.certificates.attacked import BATCH, Progress, attack_batches, hold
from lipscale.certificates.proof import Proof, prove
from lipscale.certificates.slopes import slopes
from lipscale.errors import UserError
from lipscale.layers.evaluation import evaluation_mode
from lipscale.losses import margin

INSIDE = 0.9999  # attacks stay just under the radius
# of a time that is given: when attacks end, and when the search for slopes does; AutoAttack may have the rest
ATTACKS_END, SLOPES_END = 0.4, 0.6
SMALL_BATCH = 50  # samples between two looks at the clock
AUTOATTACK_STEPS = 7000  # gradients or queries, more or less, which it makes of all samples at once
# slopes are measured in float64, where rounding is far below this
SLOPE_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Audit:
    """What an audit did and found; a certificate that holds has no violations."""

    attacked: int  # certified samples whose class and confidence were attacked
    pairs: int  # pairs of inputs whose slope was measured
    violations: int  # classes changed, confidences out of range, slopes above the bound
    slope: float  # the steepest one found
    bound: float
    tightness: float  # slope / bound
    complete: bool = True  # whether all that was asked for was tried; else the time was up


def audit(
    net: nn.Module,
    inputs: Tensor,
    *,
    proof: Proof | None = None,
    pairs: int = 10_000,
    steps: int = 50,
    autoattack_samples: int = 0,
    seed: int = 0,
    seconds: float = math.inf,
    on_progress: Progress = lambda what, done, total: None,
) -> Audit:
    """Attack every certified input at just under its radius, and search for slopes above the bound.

    Args:
        net: the network, in any mode; it is audited in evaluation.
        inputs: (N, ...) with N >= 2.
        proof: What is proven about the network, if that was made already.
        pairs: how many random pairs of points to measure the slope between.
        steps: of each attack.
        autoattack_samples: how many of the inputs, from the first, to try AutoAttack on, where it is installed.
        seed: fixes everything that is random.
        seconds: about how long it may take; what is not tried by then is left out, and `complete` says so.
        on_progress: called with what is being done, how much of it is done, and out of how much.

    Returns:
        What was tried and found.

    Example:
        >>> import lipscale, torch
        >>> from lipscale.certificates import audit
        >>> net = lipscale.models.mlp(3, 4, 8)
        >>> audit(net, torch.rand(20, 4), pairs=100, steps=5).violations
        0
    """
    if len(inputs) < 2:
        raise UserError(f"an audit needs at least 2 inputs, got {len(inputs)}")
    clock = _Clock(seconds)
    with evaluation_mode(net):
        proof = proof or prove(net, inputs.shape[1:], even_unconstrained=True)
        proof.require_of(net, inputs)
        radii = proof(inputs).radius()
        chosen = (radii > 0) & radii.isfinite()
        tried = _attack(net, proof, inputs[chosen], radii[chosen] * INSIDE, steps, seed, clock, on_progress)
        measured, slope, steeper = _slopes(proof, inputs, pairs, seed, clock, on_progress)
        attacked, violations = tried[0], tried[1] + steeper
        complete = attacked == int(chosen.sum()) and measured >= pairs
        if autoattack_samples and autoattack_installed():
            few = slice(autoattack_samples)
            if clock.has(AUTOATTACK_STEPS * _seconds_of_a_step(net, inputs[few])):
                violations += _autoattack(net, proof, inputs[few], radii[few], seed=seed, on_progress=on_progress)
            else:
                complete = False
    bound = proof.bound
    # the bound of a constant network is zero, and there is nothing to find
    return Audit(attacked, measured, violations, slope, bound, slope / bound if bound else 0.0, complete)


def _slopes(
    proof: Proof, inputs: Tensor, pairs: int, seed: int, clock: "_Clock", on_progress: Progress
) -> tuple[int, float, int]:
    """Search for steep slopes: how many were measured, the steepest, and how many are above the bound."""
    measured, slope, above = 0, 0.0, 0
    for found in slopes(copy.deepcopy(proof.net).double(), inputs.double(), pairs, seed=seed):
        measured, slope = measured + len(found), max(slope, float(found.max()))
        above += int((found > proof.bound * SLOPE_ROUNDING).sum())
        on_progress("slopes between pairs of points", min(measured, pairs), pairs)
        if clock.is_past(SLOPES_END):
            break
    return measured, slope, above


class _Clock:
    """How much of a time is gone."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.start = seconds, time.monotonic()

    @property
    def is_running(self) -> bool:
        """Whether there is an end at all."""
        return self.seconds < math.inf

    def has(self, seconds: float) -> bool:
        """Whether so many seconds are left."""
        return time.monotonic() - self.start + seconds <= self.seconds

    def is_past(self, share: float) -> bool:
        """Whether so much of the time is over."""
        return time.monotonic() - self.start >= share * self.seconds


def _attack(
    net: nn.Module,
    proof: Proof,
    inputs: Tensor,
    epsilon: Tensor,
    steps: int,
    seed: int,
    clock: _Clock,
    on_progress: Progress,
) -> tuple[int, int]:
    """Attack class and confidence of certified inputs: how many there was time for, and on how many it broke."""

    def attack(rows: Tensor, k: int) -> dict[str, Tensor]:
        x, eps, generator = inputs[rows], epsilon[rows], random_stream(seed, "audit", k)
        predicted = net(x).argmax(1)
        changed = apgd(lambda points: -margin(net(points), predicted), x, eps, steps=steps, generator=generator)
        moved = calibration_attack(net, x, predicted, epsilon=eps, steps=steps, generator=generator)
        return {"class": changed, "over": moved.over, "under": moved.under}

    violations = done = 0
    batch = SMALL_BATCH if clock.is_running else BATCH
    for certificate, found in attack_batches(proof, inputs, epsilon, attack, batch=batch):
        violations += int(torch.stack([held.broken for held in found.values()]).any(0).sum())
        done += len(certificate.logits)
        on_progress("attacks on certified samples", done, len(inputs))
        if clock.is_past(ATTACKS_END):
            break
    return done, violations


def _autoattack(
    net: nn.Module, proof: Proof, inputs: Tensor, radii: Tensor, *, seed: int, on_progress: Progress
) -> int:
    """AutoAttack has one epsilon for all: the median radius, on the samples certified beyond it."""
    epsilon = float(radii.median()) * INSIDE
    x = inputs[radii > epsilon]
    if not 0 < epsilon < math.inf or len(x) == 0:
        return 0
    certificate = proof(x)
    tell = partial(on_progress, "AutoAttack")
    points = autoattack(net, x, certificate.logits.argmax(1), epsilon=epsilon, seed=seed, on_batch=tell)
    return int(hold(proof, certificate, x, points, torch.full_like(radii[: len(x)], epsilon)).broken.sum())


def _seconds_of_a_step(net: nn.Module, inputs: Tensor) -> float:
    """How long a gradient of all inputs takes here; the better of two, because the first one warms up."""
    taken = []
    for _ in range(2):
        start = time.monotonic()
        value_and_gradient(lambda x: net(x).sum(1), inputs)
        taken.append(time.monotonic() - start)
    return min(taken)


def verdict(result: Audit) -> str:
    """The result in words."""
    if result.violations:
        return f"BROKEN: {result.violations} violations. Do not rely on this certificate, and please report it."
    share = f"{100 * result.tightness:.1f} %"
    all_of_it = "" if result.complete else " that there was time for"
    return f"The certificate held against every attack{all_of_it}. The steepest slope found is {share} of the bound."
