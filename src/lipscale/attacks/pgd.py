"""Projected gradient descent in the l2 norm (Madry et al., 2018), with restarts."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipscale.attacks.ball import Box, direction, norms, project, value_and_gradient
from lipscale.losses import margin

STEP = 2.5  # steps of 2.5 epsilon / steps reach every point of the ball from every other
cross_entropies = partial(F.cross_entropy, reduction="none")


def pgd(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    steps: int = 40,
    restarts: int = 2,
    box: Box | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Points within epsilon of the inputs, misclassified where any restart found one; else the input itself.

    Restarts take turns between the cross-entropy and the margin: where a network is very sure, the gradient of the
    first vanishes in float32, and that of the second does not.

    Args:
        net: the network, in evaluation mode.
        inputs: (N, ...).
        labels: (N,).
        epsilon: the l2 radius.
        steps: of each restart.
        restarts: from random points of the ball.
        box: the range of input values, (0, 1) for pixels; None where there is none.
        generator: of the random starts.

    Returns:
        The points, shaped as the inputs.

    Example:
        >>> import lipscale, torch
        >>> net = lipscale.models.mlp(3, 4, 8).eval()
        >>> inputs = torch.rand(5, 4)
        >>> points = lipscale.attacks.pgd(net, inputs, net(inputs).argmax(1), epsilon=0.5, steps=5)
        >>> bool(((points - inputs).norm(dim=1) <= 0.5001).all())
        True
    """
    found = inputs.clone()
    with torch.no_grad():
        left = (net(inputs).argmax(1) == labels).nonzero().squeeze(1)
    for restart in range(restarts):
        if len(left) == 0:
            break
        x, y = inputs[left], labels[left]
        loss = (lambda z, y: -margin(z, y)) if restart % 2 else cross_entropies
        points = _climb(net, x, y, epsilon, steps, loss, until_wrong=True, box=box, generator=generator)
        with torch.no_grad():
            fooled = net(points).argmax(1) != y
        found[left[fooled]] = points[fooled]
        left = left[~fooled]
    return found


def worst_points(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    steps: int = 10,
    box: Box | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The inner maximisation of adversarial training: points within epsilon whose cross-entropy is large.

    Unlike `pgd` it does not stop at the first error: a loss is to be learned from, so that all steps are taken.
    """
    return _climb(net, inputs, labels, epsilon, steps, cross_entropies, box=box, generator=generator)


def _climb(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    epsilon: float,
    steps: int,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    until_wrong: bool = False,
    box: Box | None,
    generator: torch.Generator | None,
) -> Tensor:
    """Follow the gradient of a loss from a random point of each ball, to the end or up to the first error."""
    radius = torch.full((len(inputs), *[1] * (inputs.ndim - 1)), epsilon, dtype=inputs.dtype, device=inputs.device)
    share = torch.rand(radius.shape, generator=generator, dtype=inputs.dtype).to(inputs.device)
    x = project(inputs + direction(inputs, generator) * radius * share, inputs, radius, box)
    wrong = torch.zeros_like(labels, dtype=torch.bool)

    def objective(points: Tensor) -> Tensor:
        nonlocal wrong
        logits = net(points)
        wrong = logits.detach().argmax(1) != labels
        return loss(logits, labels)

    for _ in range(steps):
        _, gradient = value_and_gradient(objective, x)
        moved = project(x + (STEP * epsilon / steps) * gradient / norms(gradient), inputs, radius, box)
        x = torch.where(wrong.view(radius.shape), x, moved) if until_wrong else moved  # what is found stays found
    return x
