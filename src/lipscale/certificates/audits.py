"""Try to break a certificate: attacks inside the radius and the confidence range, and a search for steep slopes."""

import copy
import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from lipscale._random import random_stream
from lipscale.attacks import apgd, autoattack, autoattack_installed, calibration_attack
from lipscale.certificates.attacked import Progress, attack_batches, hold
from lipscale.certificates.proof import Proof, prove
from lipscale.certificates.slopes import slopes
from lipscale.errors import UserError
from lipscale.layers.evaluation import evaluation_mode
from lipscale.losses import margin

INSIDE = 0.9999  # attacks stay just under the radius
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


def audit(
    net: nn.Module,
    inputs: Tensor,
    *,
    proof: Proof | None = None,
    pairs: int = 10_000,
    steps: int = 50,
    autoattack_samples: int = 0,
    seed: int = 0,
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
    with evaluation_mode(net):
        proof = proof or prove(net, inputs.shape[1:], even_unconstrained=True)
        proof.require_of(net, inputs)
        radii = proof(inputs).radius()
        certified = (radii > 0) & radii.isfinite()
        attacked = int(certified.sum())
        violations = _attack(net, proof, inputs[certified], radii[certified] * INSIDE, steps, seed, on_progress)
        if autoattack_samples and autoattack_installed():
            few = slice(autoattack_samples)
            violations += _autoattack(net, proof, inputs[few], radii[few], seed=seed, on_progress=on_progress)
        exact, measured, slope = copy.deepcopy(proof.net).double(), 0, 0.0
        for found in slopes(exact, inputs.double(), pairs, seed=seed):
            measured, slope = measured + len(found), max(slope, float(found.max()))
            violations += int((found > proof.bound * SLOPE_ROUNDING).sum())
            on_progress("slopes between pairs of points", min(measured, pairs), pairs)
    bound = proof.bound  # zero for a constant network, on which there is nothing to find
    return Audit(attacked, measured, violations, slope, bound, slope / bound if bound else 0.0)


def _attack(
    net: nn.Module, proof: Proof, inputs: Tensor, epsilon: Tensor, steps: int, seed: int, on_progress: Progress
) -> int:
    """Attack class and confidence of certified inputs; the number of samples for which the certificate broke."""

    def attack(rows: Tensor, k: int) -> dict[str, Tensor]:
        x, eps, generator = inputs[rows], epsilon[rows], random_stream(seed, "audit", k)
        predicted = net(x).argmax(1)
        changed = apgd(lambda points: -margin(net(points), predicted), x, eps, steps=steps, generator=generator)
        moved = calibration_attack(net, x, predicted, epsilon=eps, steps=steps, generator=generator)
        return {"class": changed, "over": moved.over, "under": moved.under}

    violations = done = 0
    for certificate, found in attack_batches(proof, inputs, epsilon, attack):
        violations += int(torch.stack([held.broken for held in found.values()]).any(0).sum())
        done += len(certificate.logits)
        on_progress("attacks on certified samples", done, len(inputs))
    return violations


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


def verdict(result: Audit) -> str:
    """The result in words."""
    if result.violations:
        return f"BROKEN: {result.violations} violations. Do not rely on this certificate, and please report it."
    share = f"{100 * result.tightness:.1f} %"
    return f"The certificate held against every attack. The steepest slope found is {share} of the bound."
