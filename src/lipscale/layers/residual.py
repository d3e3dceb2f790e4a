"""Parallel paths: the convex residual blend, whose skip carries its branch's sigma; the plain sum; concatenation."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lipscale.errors import UserError
from lipscale.layers.tracing import is_traced


class ConvexResidual(nn.Module):
    """y = alpha * branch(x) + (1 - alpha) * sigma * skip(x), with a learned alpha in (0, 1).

    `sigma` is the product of the branch's sigmas. Without it the block's constant would be
    alpha sigma + (1 - alpha), not sigma, and a network's sigma^D would be no bound for L < 1.
    """

    sigma: Tensor

    def __init__(self, branch: nn.Module, skip: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.skip = nn.Identity() if skip is None else skip
        self.blend = nn.Parameter(torch.zeros(()))  # alpha = sigmoid(blend), 1/2 at the start
        self.register_buffer("sigma", torch.ones(()))

    @property
    def alpha(self) -> Tensor:
        """The weight of the branch."""
        return torch.sigmoid(self.blend)

    def forward(self, x: Tensor) -> Tensor:
        """Blend the two paths, which must agree in shape."""
        skip, branch = self.skip(x), self.branch(x)
        _require_equal_shapes(branch, skip)
        branch = branch.to(skip.dtype)  # mixed precision may have computed the two in different ones
        if is_traced() or not torch.is_grad_enabled():
            return torch.lerp(self.sigma * skip, branch, self.alpha.to(skip.dtype))
        return _Blend.apply(branch, skip, self.blend, self.sigma)


class _Blend(torch.autograd.Function):
    """y = alpha * branch + (1 - alpha) * sigma * skip, alpha = sigmoid(blend).

    Since dy / dblend = alpha (1 - alpha) (branch - sigma * skip) = (1 - alpha) (y - sigma * skip), the gradient needs
    no branch: y and skip are kept by the layers around anyway.
    """

    @staticmethod
    def forward(ctx: Any, branch: Tensor, skip: Tensor, blend: Tensor, sigma: Tensor) -> Tensor:
        alpha = torch.sigmoid(blend)
        y = torch.lerp(sigma * skip, branch, alpha.to(skip.dtype))
        ctx.save_for_backward(y, skip, alpha, sigma)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        y, skip, alpha, sigma = ctx.saved_tensors
        to_branch, to_skip, to_blend, _ = ctx.needs_input_grad
        return (
            alpha * grad if to_branch else None,
            (1 - alpha) * sigma * grad if to_skip else None,
            (1 - alpha) * _dot(grad, y, skip, sigma) if to_blend else None,
            None,
        )


def _dot(grad: Tensor, y: Tensor, skip: Tensor, sigma: Tensor) -> Tensor:
    """The product of grad with y - sigma * skip."""
    if grad.dtype.itemsize >= 4 and all(t.is_contiguous() for t in (grad, y, skip)):  # nothing is written out
        return torch.dot(grad.view(-1), y.view(-1)) - sigma * torch.dot(grad.view(-1), skip.view(-1))
    # torch's dot of 16 bits takes four times as long, and what it has lost the difference of two would show
    products = grad * (y - (sigma * skip).to(y.dtype))
    each = products.sum(tuple(range(1, products.ndim)))
    return each.sum(dtype=torch.promote_types(each.dtype, torch.float32))


class Sum(nn.Module):
    """The ordinary residual, y = branch(x) + skip(x)."""

    def __init__(self, branch: nn.Module, skip: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.skip = nn.Identity() if skip is None else skip

    def forward(self, x: Tensor) -> Tensor:
        """Add the two paths, which must agree in shape."""
        branch, skip = self.branch(x), self.skip(x)
        _require_equal_shapes(branch, skip)
        return branch + skip


def _require_equal_shapes(branch: Tensor, skip: Tensor) -> None:
    # broadcasting would copy the smaller one, and expand distances
    if branch.shape != skip.shape:
        raise UserError(f"branch and skip disagree in shape: {tuple(branch.shape)} and {tuple(skip.shape)}")


class Concatenate(nn.ModuleList):
    """The outputs of several branches of the same input, side by side as channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__(branches)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) -> (B, C_1 + C_2 + ..., ...)."""
        return torch.cat([branch(x) for branch in self], 1)
