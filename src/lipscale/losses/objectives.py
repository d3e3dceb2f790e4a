"""What a network of constant L is trained for (`--objective NAME`): each asks for a margin in its own way.

The logits are z = L f with f 1-Lipschitz, so a radius eps is worth a margin of sqrt(2) eps L in z, sqrt(2) eps in f.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lipscale import _processes as processes
from lipscale.losses.baselines import focal_loss
from lipscale.losses.margin import margin, offset_of
from lipscale.losses.weights import weighted_mean


def offset_cross_entropy(
    logits: Tensor, labels: Tensor, *, offset: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """Cross-entropy with an offset xi: CE(softmax(z - xi y), y), y one-hot (Sec. 2.1, with tau absorbed in L).

    The true class must win by xi before its loss counts as small, so a larger offset buys larger margins.

    Args:
        logits: (B, C).
        labels: The true classes, (B,).
        offset: xi, in units of the logits.
        weights: (C,), let some classes count more; the mean is over the weights.

    Returns:
        The mean loss, a scalar tensor.

    Example:
        >>> import torch, lipscale
        >>> round(float(lipscale.offset_cross_entropy(torch.tensor([[3.0, 0.0]]), torch.tensor([0]), offset=3.0)), 4)
        0.6931
    """
    if offset:
        logits = logits - offset * F.one_hot(labels, logits.shape[-1]).to(logits)  # (B, C)
    return F.cross_entropy(logits, labels, weight=weights)


def tau_cross_entropy(logits: Tensor, labels: Tensor, *, tau: float, weights: Tensor | None = None) -> Tensor:
    """CE(softmax(tau z), y) / tau: a large tau asks for accuracy, a small one for margins (Béthune et al., 2022).

    Under LiST tau is the slope that training sees against that of the probabilities: below 1 the network trains as
    if it were less sure than it is, grows its margins, and the feedback takes L down.
    """
    return F.cross_entropy(tau * logits, labels, weight=weights) / tau


def hkr_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    lipschitz: float,
    radius: float,
    alpha: float,
    weights: Tensor | None = None,
) -> Tensor:
    """Hinge-Kantorovich-Rubinstein, alpha hinge - (1 - alpha) KR, of f = z / L (Serrurier et al., 2021).

    KR is E[f_c | y = c] - E[f_c | y != c], the mean over the classes c: a distance between them, which the hinge
    holds to a margin of sqrt(2) `radius`. It has no scale of probabilities, so it sees f: L moves those alone, and
    LiST's feedback amounts to one step L <- L / T* at the end.
    """
    f = logits / lipschitz
    is_class = F.one_hot(labels.long(), f.shape[1]).bool()  # (B, C)
    needed = offset_of(radius, 1.0) / 2  # f_y above it and all others below its negative
    hinge = torch.where(is_class, (f.shape[1] - 1) * F.relu(needed - f), F.relu(needed + f))
    # how many of each class, in the whole batch, however many processes share it
    counts = processes.total(is_class.sum(0).to(f))
    inside, outside = (counts.sum() / found.clamp(min=1) for found in (counts, counts.sum() - counts))
    distance = torch.where(is_class, inside * f, -outside * f)
    return weighted_mean((alpha * hinge - (1 - alpha) * distance).mean(1), labels, weights)


def annealed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    offset: float,
    gamma: float,
    temperature: float = 0.75,
    weights: Tensor | None = None,
) -> Tensor:
    """Logit annealing, T (1 - p_y)^gamma CE(softmax((z - xi y) / T), y) (Lai et al., 2025).

    It asks for a margin as the offset does, and lets go of the samples that have it: a focal loss.
    """
    shifted = (logits - offset * F.one_hot(labels.long(), logits.shape[1]).to(logits)) / temperature
    return temperature * focal_loss(shifted, labels, gamma=gamma, weights=weights)


def emma_loss(
    logits: Tensor, labels: Tensor, *, lipschitz: float, radius: float, weights: Tensor | None = None
) -> Tensor:
    """EMMA: every other class is raised by what an attack of its own size could (Hu et al., 2023).

    The attack on class j is as large as the margin to j lets it be, from a hundredth of `radius` to all of it: the
    worst case of a robust sample, and little more than the plain loss where the answer is wrong anyway.
    """
    reach = offset_of(radius, lipschitz)
    lead = logits.gather(1, labels.long().unsqueeze(1)) - logits  # z_y - z_j, (B, C)
    raised = logits + (lead / reach).clamp(0.01, 1).detach() * reach
    own = F.one_hot(labels.long(), logits.shape[1]).bool()
    return F.cross_entropy(torch.where(own, logits, raised), labels, weight=weights)


def cll_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    lipschitz: float,
    radius: float,
    slack: float,
    weights: Tensor | None = None,
) -> Tensor:
    """CLL, a softmax in units of the radius: CE(softmax(u / sigma), y) (Losch et al., 2023).

    u_j = (z_j - z_y) / (sqrt(2) L) + `radius` for other classes, u_y = -`radius`. sigma makes a logistic
    distribution that has the share 1 - `slack` of its mass within the radius. L cancels out, as with HKR.
    """
    sigma = radius / math.log((1 - slack / 2) / (slack / 2))
    distances = (logits - logits.gather(1, labels.long().unsqueeze(1))) / offset_of(1.0, lipschitz)
    moved = distances + radius * (1 - 2 * F.one_hot(labels.long(), logits.shape[1]).to(logits))
    return F.cross_entropy(moved / sigma, labels, weight=weights)


def certificate_loss(logits: Tensor, labels: Tensor, *, gamma: float, weights: Tensor | None = None) -> Tensor:
    """Certificate regularisation, CE(softmax(z), y) - gamma max(M, 0) (Singla et al., 2022): a prize on the margin."""
    losses = F.cross_entropy(logits, labels, reduction="none") - gamma * F.relu(margin(logits, labels))
    return weighted_mean(losses, labels, weights)
