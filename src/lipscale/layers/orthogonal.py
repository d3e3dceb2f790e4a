"""Orthonormal frames: by Gram-Schmidt, differentiable and cheap in training, exact in evaluation; the polar factor."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lipscale.layers.tracing import is_traced

# a direction of the raw matrix this much shorter than its largest one is left contracted instead of amplified
RANK_TOLERANCE = 1e-6
WORTH_REDUCING = 64  # columns; below, converting to bfloat16 takes longer than what it saves


def orthonormal(raw: Tensor, *, reduced: bool = False) -> Tensor:
    """The Gram-Schmidt frame of a raw matrix, differentiable: its columns, or rows if they are fewer, orthonormal.

    raw = Q R with R upper triangular and its diagonal positive. There is no iteration and nothing to converge: R comes
    from a Cholesky decomposition, and the gradient is exact wherever the raw matrix has drifted to.
    `reduced` is for a frame that is rounded to bfloat16 anyway: the large products are computed in it.
    """
    if raw.shape[-2] < raw.shape[-1]:
        return orthonormal(raw.mT, reduced=reduced).mT
    if is_traced():
        return raw @ _whitening(raw).mT
    return _GramSchmidt.apply(raw, reduced)


def exact_orthonormal(raw: Tensor) -> Tensor:
    """The same frame in float64, orthonormal to rounding even where the raw matrix is rank deficient; no gradient."""
    raw = raw.detach().double()
    if raw.shape[-2] < raw.shape[-1]:
        return exact_orthonormal(raw.mT).mT
    q, r = torch.linalg.qr(raw)
    sign = r.diagonal(dim1=-2, dim2=-1).sign()
    return q * torch.where(sign == 0, 1.0, sign).unsqueeze(-2)


def random_frame(*shape: int, size: float) -> nn.Parameter:
    """Raw matrices to start from: orthonormal and uniformly distributed, times `size`.

    Gram-Schmidt does not see the size, but an optimizer whose steps have one length, like Adam, does: a smaller raw
    matrix learns faster.
    """
    raw = torch.randn(shape)
    return nn.Parameter((size * exact_orthonormal(raw)).to(raw.dtype).contiguous())  # others' savers ask for it


def polar_factor(matrices: Tensor) -> Tensor:
    """The nearest matrix with orthonormal rows or columns, U V^T of the singular value decomposition.

    It is the limit of the Bjorck iteration that the peers truncate; here it is computed in float64, and rank
    deficiency does no harm.
    """
    wide = matrices.detach().to(torch.promote_types(matrices.dtype, torch.float64))  # or complex128
    u, _, vh = torch.linalg.svd(wide, full_matrices=False)  # (..., m, n)
    return u @ vh


def _whitening(raw: Tensor, *, reduced: bool = False) -> Tensor:
    """R^-T of raw = Q R. In float64: a Gram matrix squares the condition number, which float32 has no digits for."""
    wide = raw if reduced else raw.double()
    gram = (wide.mT @ wide).double()
    # a sound upper bound of its norm sets the scale of the shift that keeps the decomposition from failing
    shift = RANK_TOLERANCE**2 * gram.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(1e-30)
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    lower = torch.linalg.cholesky_ex(gram + shift[..., None, None] * eye).L.to(raw.dtype)
    return torch.linalg.solve_triangular(lower, eye.to(raw.dtype).expand_as(lower), upper=False)


class _GramSchmidt(torch.autograd.Function):
    """Q of raw = Q R, with the closed form of its gradient: a projection onto the tangent space, then R^-T."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, reduced: bool) -> Tensor:
        ctx.reduced = reduced
        whitening = _whitening(raw, reduced=reduced)
        q = product(raw, whitening.mT, reduced)
        ctx.save_for_backward(q, whitening)
        return q

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        q, whitening = ctx.saved_tensors
        inner = product(q.mT, grad, ctx.reduced)
        # for a function of the span alone `inner` is symmetric, and this is the tangent projection grad - Q Q^T grad
        symmetric = inner.triu() + inner.triu(1).mT
        return product(grad - product(q, symmetric, ctx.reduced), whitening, ctx.reduced), None


def product(a: Tensor, b: Tensor, reduced: bool) -> Tensor:
    """The product of two matrices, computed in bfloat16 where `reduced`, unless they are too small to gain by it."""
    if not reduced or min(a.shape[-1], b.shape[-1]) < WORTH_REDUCING:
        return a @ b
    return (a.bfloat16() @ b.bfloat16()).to(a.dtype)
