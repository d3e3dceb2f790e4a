"""One loop and one check for all that attacks a certificate.

No class may change within its radius, no confidence may leave its range. Attacks search with the network as it is; what
they find is judged in the arithmetic that the proof is about.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipscale.attacks.ball import distances
from lipscale.certificates.certificate import Certificate
from lipscale.certificates.proof import Proof
from lipscale.errors import UserError

BATCH = 250
PointsFor = Callable[[Tensor, int], Mapping[str, Tensor]]  # (rows, number of the batch) -> points, by attack
Progress = Callable[[str, int, int], None]  # what is being done, how much of it is, out of how much


@dataclass(frozen=True)
class Held:
    """What an attack found for a batch, held against the certificate."""

    logits: Tensor  # (B, C), at the points that were found
    broken: Tensor  # (B,): another class within the certified radius, or a confidence out of its certified range


def require_proof_of(net: nn.Module, proof: Proof, inputs: Tensor) -> None:
    """Refuse a proof of another network, or of weights that have changed since: it would be tried in vain."""
    own, proven = net(inputs[:2]).double(), proof(inputs[:2]).logits
    if own.shape != proven.shape or not torch.allclose(own, proven, rtol=1e-3, atol=1e-3 * float(own.abs().max())):
        raise UserError("the proof is of another network, or its weights have changed since: prove it anew")


def attack_batches(
    proof: Proof, inputs: Tensor, epsilon: Tensor, attack: PointsFor
) -> Iterator[tuple[Certificate, dict[str, Held]]]:
    """Attack batch by batch; yields a batch's certificate, and what each attack did to it. `epsilon` is (N,)."""
    for k, rows in enumerate(torch.arange(len(inputs), device=inputs.device).split(BATCH)):
        x, eps = inputs[rows], epsilon[rows]
        certificate = proof(x)
        yield certificate, {name: hold(proof, certificate, x, found, eps) for name, found in attack(rows, k).items()}


def hold(proof: Proof, certificate: Certificate, inputs: Tensor, points: Tensor, epsilon: Tensor) -> Held:
    """Hold points near the inputs against the inputs' certificate."""
    predicted = certificate.logits.argmax(1)
    logits, distance = proof(points).logits, distances(points, inputs)
    changed_at = torch.where(logits.argmax(1) != predicted, distance, torch.inf)
    p = torch.softmax(logits, 1).gather(1, predicted.unsqueeze(1)).squeeze(1)
    # rounding may take a point a little beyond epsilon: it is held against the range at its own distance
    lower, upper = certificate.confidence(torch.maximum(distance, epsilon.double()))
    return Held(logits, changed_within(certificate.radius(), changed_at) | ~((lower <= p) & (p <= upper)))


def changed_within(radii: Tensor, changed_at: Tensor) -> Tensor:
    """Whether a class changed at a distance within its certified radius; beyond it nothing was promised."""
    return (radii > 0) & (changed_at <= radii)
