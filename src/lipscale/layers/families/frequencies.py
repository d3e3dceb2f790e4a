"""Families that make a matrix orthogonal: dense and 1 x 1 layers as they are, larger kernels frequency by frequency."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from lipscale.layers.circular import CircularConv2d
from lipscale.layers.families.family import Conv, Family, kernel_conv, kernel_linear
from lipscale.layers.families.formula import Start
from lipscale.layers.scale import UnitWeight

Map = Callable[[Tensor, int, int], Tensor]  # (raw matrices, outputs, inputs) -> matrices (..., outputs, inputs)


class Orthogonalised(UnitWeight):
    """A map of matrices: of the one tap of a 1 x 1 kernel, or of each symbol of a larger one, for one image size."""

    size: Tensor

    def __init__(self, inputs: int, outputs: int, kernel_size: int, *, start: Start, train: Map, exact: Map) -> None:
        super().__init__()
        self.inputs, self.outputs, self.train_map, self.exact_map = inputs, outputs, train, exact
        self.taps = start(outputs, inputs, kernel_size)
        if kernel_size > 1:
            self.register_buffer("size", torch.zeros(2, dtype=torch.long))

    def unit(self, *, reduced: bool = False) -> Tensor:
        """The map in the parameters' own precision."""
        return self._mapped(self.taps, self.train_map)

    def exact_unit(self) -> Tensor:
        """The map in float64."""
        return self._mapped(self.taps.detach().double(), self.exact_map)

    def _mapped(self, taps: Tensor, to_unit: Map) -> Tensor:
        if len(taps) == 1:  # (1, 1, rows, columns) -> (outputs, inputs, 1, 1)
            return to_unit(taps, self.outputs, self.inputs).permute(2, 3, 0, 1).contiguous()
        symbols = torch.fft.rfft2(taps, s=self.size.tolist(), dim=(0, 1))
        return torch.view_as_real(to_unit(symbols, self.outputs, self.inputs).resolve_conj().contiguous())


def frequency_family(name: str, paper: str, cost: str, *, start: Start, train: Map, exact: Map | None = None) -> Family:
    """The family of a map of matrices to those of norm 1; `exact` is its form in evaluation, if it has another."""
    source = partial(Orthogonalised, start=start, train=train, exact=exact or train)

    def one_by_one(inputs: int, outputs: int, kernel_size: int, stride: int) -> UnitWeight:
        return source(inputs, outputs, kernel_size)

    def conv(asked: Conv) -> nn.Module:
        if asked.kernel_size == 1:
            return kernel_conv(one_by_one, asked)
        weight = source(asked.inputs, asked.outputs, asked.kernel_size)
        return CircularConv2d(weight, asked.outputs, bias=asked.bias, family=name)

    dense = partial(kernel_linear, one_by_one)
    return Family(name, paper, cost, conv, dense, ("circular",), sees_patches=True, least_channels=2)
