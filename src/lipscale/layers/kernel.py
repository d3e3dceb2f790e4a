"""Orthogonal kernels composed of projectors: block convolutions of rank c / 2, each one product with a tall frame."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipscale.layers.orthogonal import product
from lipscale.layers.tracing import is_traced

HEIGHT, WIDTH = 1, 2  # the axes of a kernel as it is composed: (channels, height, width, others)


def compose(kernel: Tensor, frames: Tensor, axes: Iterable[int], *, reduced: bool = False) -> Tensor:
    """Widen a kernel (c, h, w, m) by one tap a frame (c, r), each along its axis; orthogonality is kept.

    A frame Q gives the projector P = Q Q^T and the orthogonal convolution with the two taps P and I - P (BCOP). P is
    never formed: all taps of the kernel go through Q^T and Q in one product each. `reduced` is for a kernel that is
    rounded to bfloat16 anyway: large products are computed in it.
    """
    for frame, axis in zip(frames, axes, strict=True):
        kernel = _widen(kernel, frame, axis, reduced)
    return kernel


def _widen(kernel: Tensor, frame: Tensor, axis: int, reduced: bool) -> Tensor:
    if is_traced():
        inside = (frame @ (frame.mT @ kernel.flatten(1))).view_as(kernel)
        blank = torch.zeros_like(kernel.narrow(axis, 0, 1))
        return torch.cat((inside, blank), axis) + torch.cat((blank, kernel - inside), axis)
    return _Widen.apply(kernel, frame, axis, reduced)


class _Widen(torch.autograd.Function):
    """K -> (P K at tap 0) + (K - P K at tap 1), with four products backward."""

    @staticmethod
    def forward(ctx: Any, kernel: Tensor, frame: Tensor, axis: int, reduced: bool) -> Tensor:
        coordinates = product(frame.mT, kernel.flatten(1), reduced)  # (r, h w m)
        inside = product(frame, coordinates, reduced).view_as(kernel)
        ctx.save_for_backward(kernel, frame, coordinates)
        ctx.axis, ctx.reduced = axis, reduced
        shape = list(kernel.shape)
        shape[axis] += 1
        wider = kernel.new_empty(shape)
        wider.select(axis, 0).zero_()
        torch.sub(kernel, inside, out=wider.narrow(axis, 1, shape[axis] - 1))
        wider.narrow(axis, 0, shape[axis] - 1).add_(inside)
        return wider

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        kernel, frame, coordinates = ctx.saved_tensors
        taps = kernel.shape[ctx.axis]
        first, second = grad.narrow(ctx.axis, 0, taps), grad.narrow(ctx.axis, 1, taps)
        inside = (first - second).flatten(1)  # the gradient of P K
        inside_coordinates = product(frame.mT, inside, ctx.reduced)
        grad_frame = product(inside, coordinates.mT, ctx.reduced)
        grad_frame += product(kernel.flatten(1), inside_coordinates.mT, ctx.reduced)
        grad_kernel = product(frame, inside_coordinates, ctx.reduced).view_as(kernel).add_(second)
        return grad_kernel, grad_frame, None, None
