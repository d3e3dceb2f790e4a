"""Spectral norms from above: float64, never a power iteration, which approaches the norm from below.

A convolution on an unbounded grid acts on each frequency w by its symbol K(w) = sum_t K_t e^{i t w}; its norm is the
largest norm of a symbol. Everything here bounds that maximum, or the one over the frequencies of a finite grid.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# float64 rounding of an SVD or a sum of products is some 1e-14 relative; a thousand times that is added on top
ROUNDING = 1 + 1e-11
# how many operations a search over frequencies may take: seconds, not minutes
GRID_BUDGET = 2e11
AT_ONCE = 2**20  # entries of symbols

Pair = tuple[int, int]


def matrix_norm(matrix: Tensor) -> float:
    """The largest singular value, by an exact SVD."""
    return float(torch.linalg.matrix_norm(matrix.detach().double(), ord=2)) * ROUNDING


@dataclass(frozen=True)
class Geometry:
    """Where the taps of a 2-d convolution go; `padding` is (top, bottom), (left, right)."""

    extent: Pair  # of the kernel, with its holes
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    groups: int = 1
    padding: tuple[Pair, Pair] = ((0, 0), (0, 0))
    padding_mode: str = "zeros"
    size: Sequence[int] | None = None  # of an input; none stands for every size

    def outputs(self, axis: int, size: int) -> int:
        """How many outputs an axis of this size has."""
        return (size + sum(self.padding[axis]) - self.extent[axis]) // self.stride[axis] + 1

    def padding_factor(self) -> float:
        """How much more than its kernel on the unbounded grid a padded convolution can expand.

        Zeros and a circular padding that makes a circulant matrix: not at all. Else padding copies pixels, and as an
        operator it has the norm sqrt(the most copies of one).
        """
        circulant = self.padding_mode == "circular" and all(map(self._is_circulant, (0, 1)))
        if self.padding_mode == "zeros" or circulant:
            return 1.0
        return math.sqrt(math.prod(map(self._most_copies, (0, 1))))

    def _is_circulant(self, axis: int) -> bool:
        """Whether circular padding along an axis gives rows of a circulant matrix, each at most once."""
        step = self.stride[axis]
        if self.size is None:
            return step == 1 and sum(self.padding[axis]) < self.extent[axis]
        size = self.size[axis]
        return size % step == 0 and self.outputs(axis, size) * step <= size

    def _most_copies(self, axis: int) -> int:
        """How often padding along an axis repeats a pixel, itself included, at most."""
        pads = self.padding[axis]
        if pads == (0, 0):
            return 1
        if self.size is None:  # the smallest input that the mode allows is the worst
            return 1 + sum(pads) if self.padding_mode == "replicate" else 3
        line = torch.arange(self.size[axis], dtype=torch.float64).view(1, 1, -1)
        return int(torch.bincount(F.pad(line, pads, mode=self.padding_mode).flatten().long()).max())


def conv_norm(
    weight: Tensor,
    *,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    groups: int = 1,
    padding: tuple[Pair, Pair] = ((0, 0), (0, 0)),
    padding_mode: str = "zeros",
    size: Sequence[int] | None = None,
) -> float:
    """A bound on the norm of a 2-d convolution, for every input size or, usually tighter, for one.

    `padding` is (top, bottom), (left, right). Groups work on channels of their own, so the largest one counts.
    """
    height, width = ((k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True))
    return norm_of(weight, Geometry((height, width), stride, dilation, groups, padding, padding_mode, size))


def norm_of(weight: Tensor, where: Geometry) -> float:
    """See `conv_norm`. Squares of tiny numbers underflow, so a power of two is taken out."""
    weight = weight.detach().double()
    largest = float(weight.abs().max()) if weight.numel() else 0.0
    exponent = min(max(-1000, math.frexp(largest)[1]), 1000) if math.isfinite(largest) else 0
    return _norm_of(weight * 2.0**-exponent, where) * 2.0**exponent


def _norm_of(weight: Tensor, where: Geometry) -> float:
    kernel = dilated(weight, where.dilation)
    if len(kernel) == where.groups > 1:  # one output each: all at once
        return _group_norm(split_phases(kernel, where.stride).unsqueeze(1), where)
    kernels = kernel.chunk(where.groups)
    return max(_group_norm(split_phases(kernel, where.stride), where) for kernel in kernels)


def _group_norm(symbol: Tensor, where: Geometry) -> float:
    """The norm of a kernel, or the largest one of kernels (groups, 1, inputs, height, width)."""
    size, stride = where.size, where.stride
    if where.padding_mode == "zeros" or not any(map(any, where.padding)):
        # restricting inputs and outputs of the unbounded grid to a part of it cannot add to the norm; and a torus
        # that is larger than the input by the kernel holds the same operator without wrapping around
        torus = None if size is None else tuple(-(-size[i] // stride[i]) + symbol.shape[i - 2] for i in (0, 1))
        return _norm_on_all_frequencies(symbol, torus)
    factor = where.padding_factor()
    if factor == 1 and size is not None:  # circular, and exactly so
        return _norm_on_torus(symbol, (size[0] // stride[0], size[1] // stride[1]))
    return factor * _norm_on_all_frequencies(symbol, None)


def _norm_on_all_frequencies(kernel: Tensor, torus: Sequence[int] | None) -> float:
    """The best of the bounds that hold for all frequencies; `torus` names a grid that is known to suffice."""
    if kernel.ndim == 5:
        bound = float(row_bounds(kernel.squeeze(1)).max()) * ROUNDING
    else:
        bound = gram_bound(kernel)
        at_zero = matrix_norm(kernel.sum((2, 3)))
        if bound <= at_zero * (1 + 1e-5):
            return bound  # already tight: so for every orthogonal kernel
        bound = min(bound, entrywise_bound(kernel), entrywise_bound(adjoint(kernel)))
    degrees = (kernel.shape[-2] - 1, kernel.shape[-1] - 1)
    cost = 8 * min(kernel.shape[-4:-2]) ** 3 * math.prod(kernel.shape[:-4])
    side = int(math.sqrt(GRID_BUDGET / cost))
    grid = [1 if d == 0 else min(side, 32 * d) for d in degrees]
    if all(n > 2 * d for n, d in zip(grid, degrees, strict=True)):
        # |p| falls no faster than a cosine from the maximum of a trigonometric polynomial p of degree d, so on a grid
        # of n points it is found up to a factor 1 / cos(pi d / n) (Ehlich and Zeller); here p = ||K(w) u||^2
        slack = math.prod(1 / math.cos(math.pi * d / n) for n, d in zip(grid, degrees, strict=True))
        bound = min(bound, math.sqrt(slack) * _norm_on_torus(kernel, grid))
    if torus is not None and math.prod(torus) * cost <= GRID_BUDGET:
        bound = min(bound, _norm_on_torus(kernel, torus))
    return bound


def gram_bound(kernel: Tensor) -> float:
    """sqrt(sum_s ||G_s||) with the autocorrelation G_s = sum_t K_{t+s} K_t^T, since ||K(w)||^2 = ||sum_s G_s e^{isw}||.

    For an orthogonal kernel G_0 = I and the rest vanish: 1 up to rounding. For others it is valid but loose.
    """
    if kernel.shape[0] > kernel.shape[1]:  # K and its adjoint have the same norm; take the smaller Gram matrices
        kernel = adjoint(kernel)
    height, width = kernel.shape[2:]
    flat = kernel.flatten(1)
    total = float(torch.linalg.matrix_norm(flat @ flat.mT, ord=2))  # ||G_0||
    for i, j in itertools.product(range(1 - height, height), range(width)):
        if j == 0 and i <= 0:
            continue  # G_{-s} is the transpose of G_s: half the shifts, twice each
        shifted = kernel[:, :, max(i, 0) : height + min(i, 0), j:].flatten(1)
        still = kernel[:, :, max(-i, 0) : height - max(i, 0), : width - j].flatten(1)
        total += 2 * float(torch.linalg.matrix_norm(shifted @ still.mT, ord="fro"))  # above the spectral norm
    return math.sqrt(total) * ROUNDING


def adjoint(kernel: Tensor) -> Tensor:
    """The kernel of the adjoint operator."""
    return kernel.transpose(0, 1).flip(-1, -2)


def absolute_gram(kernel: Tensor) -> Tensor:
    """sum_s |G_s|, entry by entry, of the autocorrelations G_s = sum_t K_{t+s} K_t^T: (outputs, outputs)."""
    height, width = kernel.shape[2:]
    return F.conv2d(kernel, kernel, padding=(height - 1, width - 1)).abs().sum((2, 3))


def entrywise_bound(kernel: Tensor) -> float:
    """sqrt(||sum_s |G_s| ||): no entry of K(w) K(w)* exceeds that of sum_s |G_s|. It is 1 for AOL's kernels."""
    return math.sqrt(matrix_norm(absolute_gram(kernel))) * ROUNDING


def row_bounds(kernels: Tensor) -> Tensor:
    """The entrywise bound of many kernels (groups, inputs, height, width) with one output each: (groups,)."""
    height, width = kernels.shape[2:]
    padding = (height - 1, width - 1)
    return (
        F.conv2d(kernels.flatten(0, 1)[None], kernels, padding=padding, groups=len(kernels)).abs().sum((0, 2, 3)).sqrt()
    )


def _norm_on_torus(kernel: Tensor, torus: Sequence[int]) -> float:
    """The exact norm of the convolution on a torus: the largest symbol norm over its frequencies."""
    rows, columns = torus
    largest = 0.0
    phase_w = _phases(columns, kernel.shape[-1])[: columns // 2 + 1]  # a real kernel: K(-w) is conjugate to K(w)
    together = max(1, AT_ONCE // (len(phase_w) * math.prod(kernel.shape[:-2])))
    for phase_h in _phases(rows, kernel.shape[-2]).split(together):
        symbols = torch.einsum("...oihw,rh,fw->...rfoi", kernel.to(torch.complex128), phase_h, phase_w)
        if symbols.shape[-2] > symbols.shape[-1]:
            symbols = symbols.mT
        gram = symbols @ symbols.mH
        largest = max(largest, float(torch.linalg.eigvalsh(gram)[..., -1].max()))
    return math.sqrt(largest) * ROUNDING


def _phases(points: int, taps: int) -> Tensor:
    """e^{i w t} for the frequencies of a ring of `points`; taps beyond it wrap around by themselves."""
    angles = 2 * math.pi * torch.outer(torch.arange(points), torch.arange(taps)).double() / points
    return torch.polar(torch.ones_like(angles), angles)


def dilated(kernel: Tensor, dilation: Pair) -> Tensor:
    """The kernel with its holes written out."""
    if dilation == (1, 1):
        return kernel
    outputs, inputs, height, width = kernel.shape
    wide = kernel.new_zeros(outputs, inputs, (height - 1) * dilation[0] + 1, (width - 1) * dilation[1] + 1)
    wide[:, :, :: dilation[0], :: dilation[1]] = kernel
    return wide


def split_phases(kernel: Tensor, stride: Pair) -> Tensor:
    """The kernel that does at stride 1, on the interleaved sub-images, what `kernel` does at `stride`."""
    if stride == (1, 1):
        return kernel
    outputs, inputs, height, width = kernel.shape
    kernel = F.pad(kernel, (0, -width % stride[1], 0, -height % stride[0]))
    taps = kernel.shape[2] // stride[0], kernel.shape[3] // stride[1]
    kernel = kernel.view(outputs, inputs, taps[0], stride[0], taps[1], stride[1]).permute(0, 1, 3, 5, 2, 4)
    return kernel.reshape(outputs, inputs * stride[0] * stride[1], *taps)
