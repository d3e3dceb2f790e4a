"""Global l2-norm pooling."""

import torch
from torch import Tensor, nn


class L2NormPool2d(nn.Module):
    """The l2 norm of each channel's map: 1-Lipschitz, and its gradient has norm 1 wherever the map is not zero.

    The paper's ScaledAdaptiveL2NormPool2d(1 x 1), in one operation; at a zero map the gradient is 0.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C)."""
        return torch.linalg.vector_norm(x, dim=(-2, -1))
