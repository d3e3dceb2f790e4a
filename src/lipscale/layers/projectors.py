"""Where the kernel of an orthogonal convolution comes from: a matrix and projectors, for each group of channels."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipscale.layers.kernel import HEIGHT, WIDTH, compose
from lipscale.layers.norms import Pair
from lipscale.layers.orthogonal import exact_orthonormal, orthonormal, random_frame
from lipscale.layers.scale import UnitWeight

Size = int | Pair

# the sizes at which a step of Adam moves a kernel about as far as it moves the peer's, or farther
MATRIX_SIZE, FRAME_SIZE = 0.25, 0.5


def as_pair(size: Any) -> Pair:
    """(height, width) of what torch takes as one number or as two."""
    values = tuple(size) if isinstance(size, Sequence) else (size,)
    return values[0], values[-1]


class ProjectorKernel(UnitWeight):
    """Kernels that are orthogonal on every grid: an orthonormal matrix, widened by projectors.

    The matrix is a convolution whose kernel is as large as its stride; each projector makes it one tap wider in height
    or width. This is the family of orthogonium's adaptive orthogonal convolution (BCOP, RKO and their
    composition), with its redundant factors left out. Its raw parameters are frames that need not be orthonormal: only
    what Gram-Schmidt makes of them counts, so weight decay and averages of them do no harm.
    """

    frames: nn.Parameter | None
    embedding: nn.Parameter | None

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size) -> None:
        super().__init__()
        kernel, self.stride = as_pair(kernel_size), as_pair(stride)
        self.widening = (kernel[0] - self.stride[0], kernel[1] - self.stride[1])
        pixels = math.prod(self.stride)
        # projectors act on the outputs where these are more, else on the inputs, in front of the stride
        self.on_outputs = pixels == 1 and out_channels >= in_channels
        channels, others = (out_channels, in_channels) if self.on_outputs else (in_channels, out_channels)
        if pixels > 1 and any(self.widening):
            channels = max(channels, others // pixels)
        self.matrix = random_frame(channels * pixels, others, size=MATRIX_SIZE)
        has_projectors = any(self.widening) and channels > 1
        self.frames = (
            random_frame(sum(self.widening), channels, channels // 2, size=FRAME_SIZE) if has_projectors else None
        )
        # more outputs than the stride makes of the inputs: those are embedded into as many channels as fill them
        self.embedding = (
            random_frame(channels, in_channels, size=MATRIX_SIZE)
            if not self.on_outputs and channels > in_channels
            else None
        )

    def unit(self, *, reduced: bool = False) -> Tensor:
        """The kernel from Gram-Schmidt frames in the parameters' own precision."""
        # the frames of projectors stay exact: what they lack would come into the kernel twice
        return self._kernel(partial(orthonormal, reduced=reduced and self.frames is None), reduced=reduced)

    def exact_unit(self) -> Tensor:
        """The kernel from exact Gram-Schmidt frames in float64."""
        return self._kernel(exact_orthonormal)

    def _kernel(self, frame: Callable[[Tensor], Tensor], *, reduced: bool = False) -> Tensor:
        kernel = frame(self.matrix).reshape(-1, *self.stride, self.matrix.shape[1])
        if self.frames is not None:
            kernel = compose(kernel, frame(self.frames), self._axes(), reduced=reduced)
        elif any(self.widening):  # a single channel has no projectors but 0 and 1: all it can do is shift
            down, right = self.widening
            kernel = F.pad(kernel, (0, 0, right // 2, right - right // 2, down // 2, down - down // 2))
        if self.embedding is not None:
            kernel = (frame(self.embedding).mT @ kernel.flatten(1)).view(-1, *kernel.shape[1:])
        order = (0, 3, 1, 2) if self.on_outputs else (3, 0, 1, 2)
        return kernel.permute(order).contiguous()  # (out_channels, in_channels, k, k)

    def _axes(self) -> list[int]:
        """What each frame widens: height and width by turns, the width first at stride 1, as the peer does."""
        left = {HEIGHT: self.widening[0], WIDTH: self.widening[1]}
        order = (WIDTH, HEIGHT) if self.stride == (1, 1) else (HEIGHT, WIDTH)
        turns = range(max(self.widening))
        return [axis for turn in turns for axis in order if turn < left[axis]]


class GroupedKernel(UnitWeight):
    """A kernel for each group of channels: a block-diagonal operator is as orthogonal as its blocks."""

    def __init__(self, kernels: Iterable[UnitWeight]) -> None:
        super().__init__()
        self.kernels = nn.ModuleList(kernels)
        self.has_matrices = all(cast(UnitWeight, kernel).has_matrices for kernel in self.kernels)

    def unit(self, *, reduced: bool = False) -> Tensor:
        """The groups' kernels, one after the other."""
        return torch.cat([cast(UnitWeight, kernel).unit(reduced=reduced) for kernel in self.kernels])

    def exact_unit(self) -> Tensor:
        """The same in float64."""
        return torch.cat([cast(UnitWeight, kernel).exact_unit() for kernel in self.kernels])
