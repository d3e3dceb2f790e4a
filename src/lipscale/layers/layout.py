"""Memory with the batch innermost: on a CPU, what cuts and joins channels and pixels then copies long runs.

A tensor is (B, C, H, W) to everybody; its numbers lie in memory as (C, H, W, B). A convolution of 1 x 1 is one product
of its weight with (C, H W B), and patches, halves of channels and columns are blocks of whole batches.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipscale.errors import UserError
from lipscale.layers.tracing import is_traced


class BatchLast(nn.Module):
    """The same numbers with the batch innermost in memory, where that is faster: on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        if x.device.type != "cpu" or x.ndim != 4 or is_traced():
            return x
        # a transposition of one matrix, which torch does fast
        return x.flatten(1).t().contiguous().view(*x.shape[1:], len(x)).permute(3, 0, 1, 2)


def is_batch_last(x: Tensor) -> bool:
    """Whether the batch is innermost in memory; what is traced has no memory yet."""
    return not is_traced() and x.ndim == 4 and len(x) > 1 and x.permute(1, 2, 3, 0).is_contiguous()


def joined(parts: Sequence[Tensor]) -> Tensor:
    """torch.cat along the channels, which keeps this layout, as does its gradient."""
    if not all(map(is_batch_last, parts)):
        return torch.cat(tuple(parts), 1)
    return torch.cat([part.permute(1, 2, 3, 0) for part in parts]).permute(3, 0, 1, 2)


def halves(x: Tensor) -> list[Tensor]:
    """The two halves of the channels, likewise."""
    if x.shape[1] % 2:
        raise UserError(f"expected channels in two halves, an even number, got {x.shape[1]}")
    if not is_batch_last(x):
        return list(x.chunk(2, 1))
    return [part.permute(3, 0, 1, 2) for part in x.permute(1, 2, 3, 0).chunk(2)]


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution with this kernel, at stride 1 with zeros around that keep the size, as a product of matrices.

    Several kernels of 1 x 1, (blocks, out, in, 1, 1), see a block of the channels each. The bias may be shorter than
    the outputs: the others have none.
    """
    batch, _, height, width = x.shape
    matrix = weight.movedim(-3, -1).flatten(-3)  # (..., out, kh kw in)
    if torch.is_autocast_enabled(x.device.type) and x.dtype is not torch.float64:  # as autocast has it
        dtype = torch.get_autocast_dtype(x.device.type)
        x, matrix, bias = x.to(dtype), matrix.to(dtype), None if bias is None else bias.to(dtype)
    seen = _taps(x, *weight.shape[-2:]).unflatten(0, (*matrix.shape[:-2], matrix.shape[-1]))
    y = _Product.apply(seen, matrix, bias)
    return y.view(-1, height, width, batch).permute(3, 0, 1, 2)


def _taps(x: Tensor, rows: int, columns: int) -> Tensor:
    """What each output pixel sees, zeros beyond the border: (B, C, H, W) -> (kh kw C, H W B)."""
    height, width = x.shape[2:]
    pixels = x.permute(1, 2, 3, 0)
    if rows == columns == 1:
        return pixels.flatten(1)
    padded = F.pad(pixels, (0, 0, (columns - 1) // 2, columns // 2, (rows - 1) // 2, rows // 2))
    seen = [padded[:, i : i + height, j : j + width] for i in range(rows) for j in range(columns)]
    return torch.stack(seen).flatten(2).flatten(0, 1)


class _Product(torch.autograd.Function):
    """(..., C, M), (..., out, C), bias -> (..., out, M): torch's own would write the bias out before it multiplies."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, matrix, bias)
        y = matrix @ x
        if bias is not None:
            _biased(y, bias).add_(bias[:, None])
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix, bias = ctx.saved_tensors
        to_x, to_matrix, to_bias = ctx.needs_input_grad
        return (
            matrix.mT @ grad if to_x else None,
            grad @ x.mT if to_matrix else None,
            _biased(grad, bias).sum(1) if to_bias else None,
        )


def _biased(y: Tensor, bias: Tensor) -> Tensor:
    """The outputs that have a bias: the first ones."""
    return y.flatten(0, -2)[: len(bias)]
