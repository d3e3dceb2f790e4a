"""Projected gradient descent in the l2 norm (Madry et al., 2018), with restarts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipscale.attacks.ball import Box, direction, norms, project, value_and_gradient
from lipscale.certificate import margin

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
    reach = torch.full((len(inputs), *[1] * (inputs.ndim - 1)), epsilon, dtype=inputs.dtype, device=inputs.device)
    start = torch.rand(reach.shape, generator=generator, dtype=inputs.dtype).to(inputs.device)
    x = project(inputs + direction(inputs, generator) * reach * start, inputs, reach, box)
    fooled = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)

    def loss(points: Tensor) -> Tensor:
        nonlocal fooled
        logits = net(points)
        fooled = logits.detach().argmax(1) != labels
        return -margin(logits, labels) if use_margin else F.cross_entropy(logits, labels, reduction="none")

    for _ in range(steps):
        _, gradient = value_and_gradient(loss, x)
        step = (STEP * epsilon / steps) * gradient / norms(gradient)
        moved = project(x + step, inputs, reach, box)
        x = torch.where(fooled.view(reach.shape), x, moved)  # what is found stays found
    return x
