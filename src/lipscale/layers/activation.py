"""Activations that preserve the norm of the gradient: GroupSort2, and its cheaper twin HalfAbs."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lipscale.errors import UserError
from lipscale.layers.tracing import is_traced


class GroupSort2(nn.Module):
    """Sort neighbouring channels in pairs, (a, b) -> (min(a, b), max(a, b)): a permutation, so 1-Lipschitz."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) -> (B, C, ...), for even C."""
        if x.shape[1] % 2:
            raise UserError(f"GroupSort2 sorts channels in pairs: expected an even number, got {x.shape[1]}")
        if is_traced():
            a, b = _pairs(x)
            return torch.stack((torch.minimum(a, b), torch.maximum(a, b)), 2).flatten(1, 2)
        return _Sort.apply(x)


class HalfAbs(nn.Module):
    """The absolute value of the first half of the channels, ``(a, b) -> (|a|, b)``: 1-Lipschitz.

    In coordinates turned by 45 degrees, (b - a, b + a) / sqrt(2), this is GroupSort2: orthogonal layers before and
    behind it absorb the turn. It touches half of the values, in one pass, where a sort touches all.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) -> (B, C, ...), for even C."""
        if x.shape[1] % 2:
            raise UserError(f"HalfAbs folds half of the channels: expected an even number, got {x.shape[1]}")
        if is_traced():
            a, b = x.chunk(2, 1)
            return torch.cat((a.abs(), b), 1)
        return _Fold.apply(x)


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """(B, C, ...) -> two views (B, C / 2, ...), the even and the odd channels."""
    return x[:, 0::2], x[:, 1::2]


class _Sort(torch.autograd.Function):
    """Written into place, without copies; what is kept for the gradient is the order of each pair.

    As 0 and 1 in the precision of x, not as bits: PyTorch converts bits slowly, in bfloat16 seven times as slowly.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        a, b = _pairs(x)
        y = torch.empty_like(x)
        low, high = _pairs(y)
        torch.minimum(a, b, out=low)
        torch.maximum(a, b, out=high)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(torch.gt(a, b, out=torch.empty_like(a)))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (swapped,) = ctx.saved_tensors
        low, high = _pairs(grad)
        result = torch.empty_like(grad)
        a, b = _pairs(result)
        torch.lerp(low, high, swapped, out=a)  # at 0 and 1 exactly the one or the other, where both are finite
        torch.lerp(high, low, swapped, out=b)
        return result


class _Fold(torch.autograd.Function):
    """What is kept for the gradient is the sign of the first half."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clone()
        a = y.narrow(1, 0, x.shape[1] // 2)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(a.sign())
        a.abs_()
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (sign,) = ctx.saved_tensors
        result = grad.clone()
        result.narrow(1, 0, sign.shape[1]).mul_(sign)
        return result
