"""The l2 ball, and the box of pixels, in which attacks search."""

from collections.abc import Callable

import torch
from torch import Tensor

Box = tuple[float, float]  # the least and the largest value of an input, such as (0, 1) for pixels


def project(points: Tensor, centres: Tensor, radius: Tensor, box: Box | None = None) -> Tensor:
    """The points pulled back into the balls around the centres, and into the box.

    The centres lie in the box, so clamping moves no point away from its centre.
    """
    delta = points - centres
    pulled = centres + delta * (radius / norms(delta)).clamp(max=1)
    return pulled if box is None else pulled.clamp(*box)


def norms(x: Tensor) -> Tensor:
    """The l2 norm of each sample, shaped to divide it."""
    tiny = torch.finfo(x.dtype).tiny
    return torch.linalg.vector_norm(x.flatten(1), dim=1).clamp(min=tiny).view(-1, *[1] * (x.ndim - 1))


def distances(points: Tensor, centres: Tensor) -> Tensor:
    """||x' - x|| of each sample in float64, where rounding cannot hide a step out of the ball. (N, ...) -> (N,)."""
    return (points.double() - centres.double()).flatten(1).norm(dim=1)


def direction(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """A random direction of length one for each sample."""
    noise = torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
    return noise / norms(noise)


def value_and_gradient(objective: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """An objective (B, ...) -> (B,) that treats samples one by one, and its gradient."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = objective(x)
        (gradient,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), gradient
