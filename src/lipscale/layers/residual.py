"""The convex residual blend, whose skip carries the scale of the branch it bypasses."""

import torch
from torch import Tensor, nn


class ConvexResidual(nn.Module):
    """y = alpha * branch(x) + (1 - alpha) * scale * skip(x), with a learned alpha in (0, 1).

    `scale` is the product of the branch's scales. Without it the block's constant would be
    alpha sigma^2 + (1 - alpha), not sigma^2, and a network's sigma^D would be no bound for L < 1.
    """

    scale: Tensor

    def __init__(self, branch: nn.Module, skip: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.skip = nn.Identity() if skip is None else skip
        self.blend = nn.Parameter(torch.zeros(()))  # alpha = sigmoid(blend), 1/2 at the start
        self.register_buffer("scale", torch.ones(()))

    @property
    def alpha(self) -> Tensor:
        """The weight of the branch."""
        return torch.sigmoid(self.blend)

    def forward(self, x: Tensor) -> Tensor:
        """Blend the two paths, which must agree in shape."""
        return torch.lerp(self.scale * self.skip(x), self.branch(x), self.alpha)
