"""The scaled orthogonal convolution and its transpose, with the arguments of torch's own."""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipscale.errors import UserError
from lipscale.layers.depthwise import DepthwiseKernel
from lipscale.layers.layout import is_batch_last, product
from lipscale.layers.norms import Pair
from lipscale.layers.projectors import GroupedKernel, ProjectorKernel, Size, as_pair
from lipscale.layers.scale import ScaledLayer, UnitWeight
from lipscale.layers.tracing import is_traced, is_watched

FEW_PIXELS = 16
PaddingMode = Literal["zeros", "circular"]
# channels in and out, kernel size and stride, as integers where they are square
KernelSource = Callable[[int, int, Any, Any], UnitWeight]


def unit_kernel(
    source: KernelSource, channels: Pair, kernel: Pair, stride: Pair, dilation: Pair, groups: int
) -> UnitWeight:
    """Where the kernel of such a convolution, from the first to the second number of channels, comes from.

    Dilation by d permutes the pixels between two strides, up to the common factor of d and the stride. That factor is
    a plain subsampling in front, as is what a stride larger than the kernel leaves out: the kernel is that of the rest.
    """
    if min(*channels, *kernel, *stride, *dilation, groups) < 1:
        raise UserError(
            f"expected channels, sizes and groups of at least 1, got {(channels, kernel, stride, dilation)}"
        )
    if channels[0] % groups or channels[1] % groups:
        raise UserError(f"expected channels in {groups} equal groups, got {channels[0]} and {channels[1]}")
    inputs, outputs = channels[0] // groups, channels[1] // groups
    rest = [min(k, s // math.gcd(s, d)) for k, s, d in zip(kernel, stride, dilation, strict=True)]
    if tuple(rest) != stride and outputs > inputs * math.prod(rest):
        raise UserError(
            f"kernel {kernel}, stride {stride} and dilation {dilation} leave {inputs * math.prod(rest)} inputs, too "
            f"few for {outputs} orthogonal outputs: use a kernel as large as its stride, without dilation"
        )
    if list(kernel) != rest and max(inputs, outputs) < 2:
        if source is ProjectorKernel:
            return DepthwiseKernel(groups, kernel, stride, dilation)
        raise UserError("an orthogonal convolution larger than 1 x 1 needs at least 2 channels on one side of a group")
    square = kernel[0] == kernel[1] and rest[0] == rest[1]
    if not square and source is not ProjectorKernel:
        raise UserError(f"{getattr(source, '__name__', source)} makes square kernels alone, ProjectorKernel any")
    sizes = (kernel[0], rest[0]) if square else (kernel, rest)
    made = [source(inputs, outputs, *sizes) for _ in range(groups)]
    return made[0] if groups == 1 else GroupedKernel(made)


class OrthoConv2d(ScaledLayer):
    """y = sigma * (K * x) + scale * b with K orthogonal on every grid (the paper's AdaptiveOrthoConv2d).

    It stands in for torch.nn.Conv2d, with one default of its own: `padding` keeps the size of the image (of an odd
    kernel at stride 1). Zero padding keeps the norm at 1 for every input size; what it gives up is isometry at the
    border. Circular padding keeps that too, but not on odd sizes at stride 2, which it therefore refuses. Where groups
    have a single channel (depthwise) there is no orthogonal kernel to learn, and K is 1-Lipschitz only. `source`
    makes the kernel: ours, or the reference (`lipscale.layers.reference.PeerKernel`).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | Literal["same", "valid"] | None = None,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        source: KernelSource = ProjectorKernel,
    ) -> None:
        if padding_mode not in ("zeros", "circular"):
            raise UserError(f"padding_mode {padding_mode!r} would expand distances: use 'zeros' or 'circular'")
        kernel, steps, holes = as_pair(kernel_size), as_pair(stride), as_pair(dilation)
        channels = (in_channels, out_channels)
        super().__init__(unit_kernel(source, channels, kernel, steps, holes, groups), out_channels, bias=bias)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride, self.dilation = kernel, steps, holes
        reach = [d * (k - 1) for k, d in zip(kernel, holes, strict=True)]
        self.padding: str | Pair
        if isinstance(padding, str):
            if padding not in ("same", "valid") or (padding == "same" and steps != (1, 1)):
                raise UserError(f"padding {padding!r}: expected numbers, 'valid', or at stride 1 'same'")
            self.padding = padding
            self.pads = [(r // 2, r - r // 2) if padding == "same" else (0, 0) for r in reach]
        else:
            self.padding = (reach[0] // 2, reach[1] // 2) if padding is None else as_pair(padding)
            self.pads = [(p, p) for p in self.padding]
        self.padding_mode = padding_mode
        if padding_mode == "circular" and any(sum(p) > r for p, r in zip(self.pads, reach, strict=True)):
            raise UserError(
                f"circular padding {self.padding} would give more outputs than inputs: at most {reach} in all"
            )
        self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, H', W'); for odd kernels H' = ceil(H / stride)."""
        if self.is_product_on(x):
            return product(x, self.weight, self.scaled_bias())
        (top, bottom), (left, right) = self.pads
        padding = (top, left)
        if self.padding_mode == "circular" and any((top, bottom, left, right)):
            if x.shape[-2] % self.stride[0] or x.shape[-1] % self.stride[1]:
                raise UserError(
                    f"circular padding at stride {self.stride} would expand distances on inputs of "
                    f"{x.shape[-2]} x {x.shape[-1]}: pad them to a multiple of it (PadToMultiple), or use zeros"
                )
            x, padding = F.pad(x, (left, right, top, bottom), mode="circular"), (0, 0)
        elif top != bottom or left != right:
            x, padding = F.pad(x, (left, right, top, bottom)), (0, 0)
        if self._has_few_pixels(x):
            pixels = F.linear(x.permute(0, 2, 3, 1), self.weight.flatten(1), self.scaled_bias())
            return pixels.permute(0, 3, 1, 2)
        return F.conv2d(x, self.weight, self.scaled_bias(), self.stride, padding, self.dilation, self.groups)

    def _has_few_pixels(self, x: Tensor) -> bool:
        """Whether this is one product of matrices, and faster as such: on few pixels PyTorch's convolutions are slow.

        The gradient of one of 1 x 1 on 2 x 2 pixels takes twice as long as that of the product.
        """
        return (
            self.training
            and self.groups == 1
            and {*self.kernel_size, *self.stride} == {1}
            and not any(map(any, self.pads))
            and x.ndim == 4
            and 0 < x.shape[-2] * x.shape[-1] <= FEW_PIXELS
            and not is_traced()
        )

    def is_product_on(self, x: Tensor) -> bool:
        """Whether this is one product of matrices: with the batch innermost in memory, and no hook that looks."""
        padding = [((k - 1) // 2, k // 2) for k in self.kernel_size]
        is_plain = self.padding_mode == "zeros" and self.groups == 1 and {*self.stride, *self.dilation} == {1}
        # where others multiply with the weight themselves, hooks would not be called
        return is_plain and not is_watched(self) and self.pads == padding and is_batch_last(x)

    def extra_repr(self) -> str:
        """The shape, for print(net)."""
        return _told(self, "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")


class OrthoConvTranspose2d(ScaledLayer):
    """y = sigma * (K^T x) + scale * b: the transpose of an orthogonal convolution, as torch.nn.ConvTranspose2d has it.

    It widens images, and expands no more than the convolution does; `padding` crops the result.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        source: KernelSource = ProjectorKernel,
    ) -> None:
        kernel, steps, holes = as_pair(kernel_size), as_pair(stride), as_pair(dilation)
        channels = (out_channels, in_channels)
        super().__init__(unit_kernel(source, channels, kernel, steps, holes, groups), out_channels, bias=bias)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride, self.dilation = kernel, steps, holes
        self.padding, self.output_padding, self.padding_mode = as_pair(padding), as_pair(output_padding), "zeros"
        self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, H', W'); H' = H stride for a kernel as large as its stride."""
        shape = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return F.conv_transpose2d(x, self.weight, self.scaled_bias(), *shape)

    def extra_repr(self) -> str:
        """The shape, for print(net)."""
        return _told(self, "kernel_size", "stride", "padding", "output_padding", "dilation", "groups")


def _told(layer: nn.Module, *names: str) -> str:
    """What tells a convolution from the simplest one."""
    usual = {"output_padding": (0, 0), "dilation": (1, 1), "groups": 1, "padding_mode": "zeros"}
    told = [f"{name}={value!r}" for name in names if (value := getattr(layer, name)) != usual.get(name)]
    return f"{layer.in_channels}, {layer.out_channels}, {', '.join(told)}, bias={layer.bias is not None}"
