"""What a family of 1-Lipschitz layers is: how its convolution and its dense layer are made, and what it cannot make."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

from torch import Tensor, nn

from lipscale.errors import UserError
from lipscale.layers.activation import GroupSort2, HalfAbs
from lipscale.layers.affine import PadToMultiple
from lipscale.layers.conv import OrthoConv2d, PaddingMode
from lipscale.layers.linear import OrthoLinear
from lipscale.layers.patches import Patches
from lipscale.layers.scale import UnitWeight


@dataclass(frozen=True)
class Conv:
    """A convolution that a model asks for."""

    inputs: int
    outputs: int
    kernel_size: int
    stride: int = 1
    bias: bool = True
    padding_mode: PaddingMode = "zeros"
    groups: int = 1

    def __str__(self) -> str:
        more = {"stride": self.stride, "groups": self.groups, "padding_mode": self.padding_mode}
        usual = {"stride": 1, "groups": 1, "padding_mode": "zeros"}
        unusual = "".join(f", {name}={value}" for name, value in more.items() if value != usual[name])
        return f"conv({self.inputs}, {self.outputs}, {self.kernel_size}{unusual})"


@dataclass(frozen=True)
class Family:
    """One way to make layers that bring no two inputs further apart."""

    name: str
    paper: str
    cost: str  # of a convolution's weight in a training step, and what comes on top of a plain convolution
    make_conv: Callable[[Conv], nn.Module]
    make_linear: Callable[..., nn.Module]  # (inputs, outputs, *, bias)
    paddings: tuple[PaddingMode, ...] = ("zeros", "circular")  # what it can do; the first is what it does by default
    sees_patches: bool = False  # it has no stride of its own
    needs_odd: bool = False  # kernels have a centre
    least_channels: int = 1  # on one side of a kernel that is larger than its stride
    activation: Callable[[], nn.Module] = GroupSort2
    fold: Callable[[], nn.Module] = HalfAbs

    def conv(
        self,
        inputs: int,
        outputs: int,
        kernel_size: int,
        *,
        stride: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode | None = None,
        groups: int = 1,
    ) -> nn.Module:
        """The family's convolution, with the interface of the other kits."""
        asked = Conv(inputs, outputs, kernel_size, stride, bias, padding_mode or self.paddings[0], groups)
        self._require_possible(asked)
        if stride == 1 or not self.sees_patches:
            return self.make_conv(asked)
        # patches become channels, an isometry; the kernel covers as many pixels as before or more
        side = -(-kernel_size // stride) // 2 * 2 + 1
        at_one = replace(asked, inputs=inputs * stride**2, kernel_size=side, stride=1)
        return nn.Sequential(PadToMultiple(stride), Patches(stride), self.make_conv(at_one))

    def linear(self, inputs: int, outputs: int, *, bias: bool = True) -> nn.Module:
        """The family's dense layer."""
        return self.make_linear(inputs, outputs, bias=bias)

    def _require_possible(self, asked: Conv) -> None:
        is_larger = asked.kernel_size > (1 if self.sees_patches else asked.stride)
        if asked.groups != 1:
            self.refuse(asked, "no model has groups (lipscale.layers.OrthoConv2d does)")
        if asked.padding_mode not in self.paddings and is_larger:
            self.refuse(asked, f"it knows padding {' and '.join(self.paddings)} only", nearest="aoc")
        if asked.stride > asked.kernel_size and not self.sees_patches:
            self.refuse(asked, "its stride is larger than its kernel", nearest="bcop")
        if self.needs_odd and asked.kernel_size % 2 == 0 and asked.stride == 1:
            self.refuse(asked, "its kernels have a centre, so an odd size", nearest="aoc")
        channels = max(asked.inputs * (asked.stride**2 if self.sees_patches else 1), asked.outputs)
        if is_larger and channels < self.least_channels:
            nearest = "aoc" if channels > 1 else "aol"
            self.refuse(asked, f"it needs at least {self.least_channels} channels on one side", nearest=nearest)

    def refuse(self, asked: object, why: str, *, nearest: str | None = None) -> NoReturn:
        """Say what cannot be made, and who can make it: never another family's layer in silence."""
        way_out = "" if nearest is None else f"; the nearest family that can is {nearest}"
        raise UserError(f"layers {self.name} cannot make {asked}: {why}{way_out}")


Source = Callable[[int, int, int, int], UnitWeight]  # of inputs, outputs, kernel_size and stride


def kernel_conv(source: Source, asked: Conv) -> OrthoConv2d:
    """A convolution with a kernel of its own size, from a source of unit kernels."""
    return OrthoConv2d(
        asked.inputs,
        asked.outputs,
        asked.kernel_size,
        stride=asked.stride,
        bias=asked.bias,
        padding_mode=asked.padding_mode,
        source=source,
    )


def kernel_linear(source: Source, inputs: int, outputs: int, *, bias: bool = True) -> OrthoLinear:
    """The dense layer of a source of kernels: its 1 x 1 convolution."""
    return OrthoLinear(inputs, outputs, bias=bias, source=lambda i, o: MatrixOf(source(i, o, 1, 1)))


class MatrixOf(UnitWeight):
    """The matrix of a kernel of 1 x 1."""

    def __init__(self, kernel: UnitWeight) -> None:
        super().__init__()
        self.kernel = kernel

    def unit(self, *, reduced: bool = False) -> Tensor:
        """(out, in, 1, 1) -> (out, in)."""
        return self.kernel.unit(reduced=reduced).flatten(1)

    def exact_unit(self) -> Tensor:
        """The same in float64."""
        return self.kernel.exact_unit().flatten(1)
