"""GroupSort2: the gradient-norm-preserving activation."""

import torch
from torch import Tensor, nn

from lipscale.errors import UserError


class GroupSort2(nn.Module):
    """Sort neighbouring channels in pairs, (a, b) -> (min(a, b), max(a, b)): a permutation, so 1-Lipschitz."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) -> (B, C, ...), for even C."""
        if x.shape[1] % 2:
            raise UserError(f"GroupSort2 sorts channels in pairs: expected an even number, got {x.shape[1]}")
        a, b = x.unflatten(1, (-1, 2)).unbind(2)  # (B, C / 2, ...) each
        return torch.stack((torch.minimum(a, b), torch.maximum(a, b)), 2).flatten(1, 2)
