"""How far the probability of every class can go within epsilon of an input, in log-odds: log p_k - log(1 - p_k).

The logits move together, within a ball of radius r = B eps. The log-odds of k, z_k - log sum_{j != k} exp(z_j), are
concave in them, so that every tangent bounds their maximum over the ball: a search for it may end anywhere.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lipscale.certificates.certificate import Certificate
from lipscale.data.memory import rows_at_once
from lipscale.errors import UserError

NEWTON_STEPS = 6  # within 1e-10 of the maximum for r = 3.5 and ten classes; wherever they end, the bound holds
COPIES = 12  # of the rivals' logits, in memory at a time
UNIT = torch.finfo(torch.float64).eps


def log_odds(logits: Tensor) -> Tensor:
    """log p_k - log(1 - p_k) of every class: no digit of p_k is lost near 0 or near 1. (N, C) -> (N, C)."""
    return _in_chunks(lambda z: z - _rivals(z).logsumexp(2), logits.double())


def highest_log_odds(certificate: Certificate, epsilon: float) -> Tensor:
    """A bound from above on what `log_odds` computes anywhere within epsilon of each input.

    The lesser one of two: the maximum over the ball ||z' - z|| <= B eps, and, pair by pair,
    -log sum_{j != k} exp(z_j - z_k - K_kj eps). Both allow for the rounding of the logits at either end, and of this.

    Args:
        certificate: Of the inputs.
        epsilon: The largest l2 distance, in the units of the input.

    Returns:
        (N, C) in float64.

    Example:
        >>> import lipscale, torch
        >>> from lipscale.certificates.probabilities import highest_log_odds, log_odds
        >>> certificate = lipscale.certify(lipscale.models.mlp(3, 4, 8), torch.rand(5, 4))
        >>> bool((highest_log_odds(certificate, 0.1) > log_odds(certificate.logits)).all())
        True
    """
    reach, rounding = logit_reach(certificate, epsilon)
    pairs = _off_diagonal(certificate.pairwise * epsilon)

    def highest(z: Tensor, r: Tensor, error: Tensor) -> Tensor:
        v = _rivals(z)
        by_pairs = z - (v - pairs - math.sqrt(2) * error[:, None, None]).logsumexp(2)
        return torch.minimum(_highest_in_ball(z, v, r), by_pairs)

    return _in_chunks(highest, certificate.logits, reach, rounding) + _own_rounding(certificate, reach)


def lowest_log_odds(certificate: Certificate, epsilon: float) -> Tensor:
    """The same from below, -log sum_{j != k} exp(z_j - z_k + K_kj eps): (N, C)."""
    reach, rounding = logit_reach(certificate, epsilon)
    pairs = _off_diagonal(certificate.pairwise * epsilon)

    def lowest(z: Tensor, error: Tensor) -> Tensor:
        return z - (_rivals(z) + pairs + math.sqrt(2) * error[:, None, None]).logsumexp(2)

    return _in_chunks(lowest, certificate.logits, rounding) - _own_rounding(certificate, reach)


def logit_reach(certificate: Certificate, epsilon: float) -> tuple[Tensor, Tensor]:
    """How far the computed logits may move together within epsilon, B eps and rounding, and the latter alone; (N,)."""
    if not 0 <= epsilon < math.inf:
        raise UserError(f"expected epsilon >= 0, got {epsilon}")
    if math.isinf(certificate.bound):
        raise UserError("nothing is proven about an unconstrained network: it has no certificate, and no robust sets")
    norms, error = certificate.norms, certificate.error
    rounding = error.at(norms) + error.at(norms + epsilon)
    return certificate.bound * epsilon + rounding, rounding


def _highest_in_ball(z: Tensor, rivals: Tensor, reach: Tensor) -> Tensor:
    """max of z_k + d_k - log sum_{j != k} exp(z_j + d_j) over ||d|| <= r, from above: (n, C), (n, C, C - 1) -> (n, C).

    At the maximum d_j = -t w_j with w the softmax of z_j + d_j over the rivals and t = r / sqrt(1 + ||w||^2). Newton
    solves log w_j + t w_j = z_j - s; the tangent at each step, of slope (1, -g), reaches r sqrt(1 + ||g||^2) higher.
    """
    r = reach[:, None, None]
    log_w, best = rivals.log_softmax(2), torch.full_like(z, math.inf)
    for _ in range(NEWTON_STEPS):
        w = log_w.exp()
        t = r / (1 + w.square().sum(2, keepdim=True)).sqrt()
        moved = rivals - t * w
        g = moved.softmax(2)
        tangent = z - moved.logsumexp(2) - (t * w * g).sum(2) + reach[:, None] * (1 + g.square().sum(2)).sqrt()
        best = torch.minimum(best, tangent)
        rest, weight = rivals - log_w - t * w, w / (1 + t * w)
        s = (weight * rest).sum(2, keepdim=True) / weight.sum(2, keepdim=True)
        log_w = (log_w + (rest - s) / (1 + t * w)).log_softmax(2)
    return best


def _own_rounding(certificate: Certificate, reach: Tensor) -> Tensor:
    """What the few operations here, and those of `log_odds` at the other end, may be off by: (N, 1)."""
    return (1e-12 + 32 * UNIT * (certificate.logits.abs().amax(1) + 2 * reach)).unsqueeze(1)


def _rivals(z: Tensor) -> Tensor:
    """The logits of all other classes: (n, C) -> (n, C, C - 1)."""
    return _off_diagonal(z.unsqueeze(1).expand(-1, z.shape[1], -1))


def _off_diagonal(square: Tensor) -> Tensor:
    """(..., C, C) -> (..., C, C - 1), without the diagonal."""
    classes = square.shape[-1]
    kept = ~torch.eye(classes, dtype=torch.bool, device=square.device)
    return square[..., kept].unflatten(-1, (classes, classes - 1))


def _in_chunks(work: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """What is computed row by row, some rows at a time: the rivals of all classes take C times as much memory."""
    size = rows_at_once(8 * COPIES * rows[0].shape[1] ** 2)
    return torch.cat([work(*some) for some in zip(*(part.split(size) for part in rows), strict=True)])
