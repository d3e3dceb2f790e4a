"""The scaled orthogonal convolution, and where its kernel comes from."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from lipscale.errors import UserError
from lipscale.layers.kernel import HEIGHT, WIDTH, compose
from lipscale.layers.orthogonal import exact_orthonormal, orthonormal, random_frame
from lipscale.layers.scale import ScaledLayer, UnitWeight

PaddingMode = Literal["zeros", "circular"]

# the sizes at which a step of Adam moves a kernel about as far as it moves the peer's, or farther
MATRIX_SIZE, FRAME_SIZE = 0.25, 0.5


class ProjectorKernel(UnitWeight):
    """Kernels that are orthogonal on every grid: an orthonormal matrix, widened by projectors.

    The matrix is a convolution whose kernel is as large as its stride; each pair of projectors makes it one tap wider
    in height and width. This is the family of orthogonium's adaptive orthogonal convolution (BCOP, RKO and their
    composition), with its redundant factors left out. Its raw parameters are frames that need not be orthonormal: only
    what Gram-Schmidt makes of them counts, so weight decay and averages of them do no harm.
    """

    frames: nn.Parameter | None
    embedding: nn.Parameter | None

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.stride, self.widening = stride, kernel_size - stride
        # projectors act on the outputs where these are more, else on the inputs, in front of the stride
        self.on_outputs = stride == 1 and out_channels >= in_channels
        channels, others = (out_channels, in_channels) if self.on_outputs else (in_channels, out_channels)
        if stride > 1 and self.widening:
            channels = max(channels, others // stride**2)
        self.matrix = random_frame(channels * stride**2, others, size=MATRIX_SIZE)
        has_projectors = self.widening > 0 and channels > 1
        self.frames = (
            random_frame(2 * self.widening, channels, channels // 2, size=FRAME_SIZE) if has_projectors else None
        )
        # more outputs than the stride makes of the inputs: those are embedded into as many channels as fill them
        self.embedding = (
            random_frame(channels, in_channels, size=MATRIX_SIZE)
            if not self.on_outputs and channels > in_channels
            else None
        )

    def unit(self, *, reduced: bool = False) -> Tensor:
        """The kernel from Gram-Schmidt frames in the parameters' own precision."""
        return self._kernel(partial(orthonormal, reduced=reduced and self.frames is None))

    def exact_unit(self) -> Tensor:
        """The kernel from exact Gram-Schmidt frames in float64."""
        return self._kernel(exact_orthonormal)

    def _kernel(self, frame: Callable[[Tensor], Tensor]) -> Tensor:
        stride, others = self.stride, self.matrix.shape[1]
        kernel = frame(self.matrix).reshape(-1, stride, stride, others)
        if self.frames is not None:
            kernel = compose(kernel, frame(self.frames), first=WIDTH if stride == 1 else HEIGHT)  # as the peer does
        elif self.widening:  # a single channel has no projectors but 0 and 1: all it can do is shift
            kernel = F.pad(kernel, (0, 0, *[self.widening // 2, self.widening - self.widening // 2] * 2))
        if self.embedding is not None:
            kernel = (frame(self.embedding).mT @ kernel.flatten(1)).view(-1, *kernel.shape[1:])
        order = (0, 3, 1, 2) if self.on_outputs else (3, 0, 1, 2)
        return kernel.permute(order).contiguous()  # (out_channels, in_channels, k, k)


class OrthoConv2d(ScaledLayer):
    """y = sigma * (K * x) + scale * b with K orthogonal on every grid (the paper's AdaptiveOrthoConv2d).

    Zero padding keeps the norm at 1 for every input size; what it gives up is isometry at the border. Circular padding
    keeps that too, but not on odd sizes at stride 2, which it therefore refuses. `source` makes the kernel: ours, or
    the reference (`lipscale.layers.reference.PeerKernel`).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        source: Callable[[int, int, int, int], UnitWeight] = ProjectorKernel,
    ) -> None:
        if stride > kernel_size:
            raise UserError(f"expected stride <= kernel_size, got stride {stride}, kernel_size {kernel_size}")
        if kernel_size > stride and max(in_channels, out_channels) < 2:
            raise UserError("an orthogonal convolution larger than 1 x 1 needs at least 2 channels on one side")
        if padding_mode not in ("zeros", "circular"):
            raise UserError(f"padding_mode {padding_mode!r} would expand distances: use 'zeros' or 'circular'")
        super().__init__(source(in_channels, out_channels, kernel_size, stride), out_channels, bias=bias)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride = kernel_size, stride
        self.padding, self.padding_mode = (kernel_size - 1) // 2, padding_mode

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, H', W'); for odd kernels H' = ceil(H / stride)."""
        padding = self.padding
        if padding and self.padding_mode == "circular":
            if x.shape[-2] % self.stride or x.shape[-1] % self.stride:
                raise UserError(
                    f"circular padding at stride {self.stride} would expand distances on inputs of "
                    f"{x.shape[-2]} x {x.shape[-1]}: pad them to a multiple of it (PadToMultiple), or use zeros"
                )
            x, padding = F.pad(x, [padding] * 4, mode="circular"), 0
        return F.conv2d(x, self.weight, self.scaled_bias(), stride=self.stride, padding=padding)

    def extra_repr(self) -> str:
        """The shape, for print(net)."""
        shape = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        mode = "" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode!r}"
        return f"{shape}, stride={self.stride}, bias={self.bias is not None}{mode}"
