"""Projected gradient descent in the l2 norm (Madry et al., 2018), with restarts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipscale.attacks.ball import Box, direction, norms, project, value_and_gradient
from lipscale.losses import margin

STEP = 2.5  # steps of 2.5 epsilon / steps reach every point of the ball from every other


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
        points = _descend(net, x, y, epsilon, steps, use_margin=restart % 2 == 1, box=box, generator=generator)
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
    radius, x = _start(inputs, epsilon, box, generator)
    for _ in range(steps):
        _, gradient = value_and_gradient(lambda points: F.cross_entropy(net(points), labels, reduction="none"), x)
        x = project(x + (STEP * epsilon / steps) * gradient / norms(gradient), inputs, radius, box)
    return x


def _start(inputs: Tensor, epsilon: float, box: Box | None, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """The radius around each sample, shaped to multiply it, and a random point within it."""
    radius = torch.full((len(inputs), *[1] * (inputs.ndim - 1)), epsilon, dtype=inputs.dtype, device=inputs.device)
    share = torch.rand(radius.shape, generator=generator, dtype=inputs.dtype).to(inputs.device)
    return radius, project(inputs + direction(inputs, generator) * radius * share, inputs, radius, box)


def _descend(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    epsilon: float,
    steps: int,
    *,
    use_margin: bool,
    box: Box | None,
    generator: torch.Generator | None,
) -> Tensor:
    """One restart: the first misclassified point on each sample's path, or its end."""
    radius, x = _start(inputs, epsilon, box, generator)
    fooled = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)

    def loss(points: Tensor) -> Tensor:
        nonlocal fooled
        logits = net(points)
        fooled = logits.detach().argmax(1) != labels
        return -margin(logits, labels) if use_margin else F.cross_entropy(logits, labels, reduction="none")

    for _ in range(steps):
        _, gradient = value_and_gradient(loss, x)
        step = (STEP * epsilon / steps) * gradient / norms(gradient)
        moved = project(x + step, inputs, radius, box)
        x = torch.where(fooled.view(radius.shape), x, moved)  # what is found stays found
    return x
