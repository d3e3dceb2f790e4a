"""Spectral norms from above: float64, never a power iteration, which approaches the norm from below."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# float64 rounding of an SVD or a sum of products is some 1e-15 relative; a thousand times that is added on top
ROUNDING = 1 + 1e-12


def matrix_norm(matrix: Tensor) -> float:
    """The largest singular value, by an exact SVD."""
    return float(torch.linalg.matrix_norm(matrix.detach().double(), ord=2)) * ROUNDING


def conv_norm(kernel: Tensor, *, stride: int = 1) -> float:
    """A bound on the norm of a zero-padded convolution that holds for every input size.

    On the infinite grid the operator has the symbol K(w) = sum_t K_t e^{i t w}, and a zero-padded convolution is
    a restriction of it. With the autocorrelation G_s = sum_t K_{t+s} K_t^T,

        ||K(w)||^2 = ||sum_s G_s e^{i s w}|| <= sum_s ||G_s||   for all w.

    For an orthogonal kernel G_0 = I and the rest vanish, so the bound is 1 up to rounding; for any other kernel it is
    valid but loose. A stride is removed first by splitting the input into its phases.
    """
    kernel = _split_phases(kernel.detach().double(), stride)  # (O, I, k, k), at stride 1 now
    if kernel.shape[0] > kernel.shape[1]:  # K and its adjoint have the same norm; take the smaller Gram matrices
        kernel = kernel.transpose(0, 1).flip(-1, -2)
    size = kernel.shape[-1]
    # conv2d correlates, so kernels slid over each other give all G_s at once: (O, O, 2k - 1, 2k - 1)
    gram = F.conv2d(kernel, kernel, padding=size - 1)
    centre = gram[:, :, size - 1, size - 1]
    squared = float(torch.linalg.matrix_norm(centre, ord=2))
    others = torch.linalg.matrix_norm(gram.permute(2, 3, 0, 1), ord="fro")  # Frobenius is above spectral
    others[size - 1, size - 1] = 0
    return math.sqrt(squared + float(others.sum())) * ROUNDING


def _split_phases(kernel: Tensor, stride: int) -> Tensor:
    """The kernel that does at stride 1, on the stride^2 interleaved sub-images, what `kernel` does at `stride`."""
    if stride == 1:
        return kernel
    out_channels, in_channels = kernel.shape[:2]
    missing = -kernel.shape[-1] % stride
    kernel = F.pad(kernel, (0, missing, 0, missing))
    size = kernel.shape[-1] // stride
    kernel = kernel.view(out_channels, in_channels, size, stride, size, stride).permute(0, 1, 3, 5, 2, 4)
    return kernel.reshape(out_channels, in_channels * stride**2, size, size)
