"""bjorck: the orthonormal matrix nearest to W (Anil et al., 2019), and as a convolution the reshaped kernel (RKO)."""

from functools import partial

import torch
from torch import Tensor

from lipscale.layers.families.family import Family, kernel_conv, kernel_linear
from lipscale.layers.families.spectral import Normalised
from lipscale.layers.orthogonal import polar_factor

STEPS = 15


def bjorck(matrices: Tensor) -> Tensor:
    """The polar factor, differentiable, by Bjorck's iteration W <- W (3 I - W* W) / 2 from a start of norm <= 1."""
    if matrices.shape[-2] < matrices.shape[-1]:
        return bjorck(matrices.mH).mH
    size = matrices.abs()
    bound = (size.sum(-1).amax(-1) * size.sum(-2).amax(-1)).sqrt()  # ||W||^2 <= ||W||_1 ||W||_inf
    w = matrices / bound.clamp_min(torch.finfo(size.dtype).tiny)[..., None, None]
    for _ in range(STEPS):
        w = 1.5 * w - 0.5 * w @ (w.mH @ w)
    return w


class ReshapedKernel(Normalised):
    """An orthonormal matrix (outputs, inputs k k) reshaped to a kernel, over the norm of that as an operator.

    The published factor, 1 over the number of windows that a pixel is in, is sound and loses up to a factor k.
    """

    def kernel(self, *, exact: bool) -> Tensor:
        """The polar factor, reshaped."""
        kernel = super().kernel(exact=exact)
        matrix = kernel.flatten(1)
        return (polar_factor(matrix) if exact else bjorck(matrix)).view_as(kernel)


BJORCK = Family(
    "bjorck",
    "Anil et al., 2019; Serrurier et al., 2021",
    f"{STEPS} products of matrices, one power iteration",
    partial(kernel_conv, ReshapedKernel),
    partial(kernel_linear, ReshapedKernel),
)
