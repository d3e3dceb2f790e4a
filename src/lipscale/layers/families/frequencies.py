"""Families that make a matrix orthogonal: dense and 1 x 1 layers as they are, larger kernels frequency by frequency."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from lipscale.errors import UserError
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
        symbols = symbols_of(taps, *self.size.tolist())
        return torch.view_as_real(to_unit(symbols, self.outputs, self.inputs).resolve_conj().contiguous())


def symbols_of(taps: Tensor, height: int, width: int) -> Tensor:
    """The symbols (h, w / 2 + 1, ...) of taps (k, k, ...) around their centre; on a small image they wrap around."""
    if height == 0:
        raise UserError("a convolution with a transform has seen no image yet, so its size is open: call it once")
    rows, columns = (_phases(side, taps) for side in (height, width))
    return torch.einsum("ht,tu...,wu->hw...", rows, taps.to(rows.dtype), columns[: width // 2 + 1])


def _phases(side: int, taps: Tensor) -> Tensor:
    """e^{-2 pi i f t / n} for the frequencies f of a ring and the places t of the taps, (n, k)."""
    places = torch.arange(len(taps), device=taps.device) - len(taps) // 2
    angles = -2 * math.pi * (torch.outer(torch.arange(side, device=taps.device), places) % side).double() / side
    phases = torch.polar(torch.ones_like(angles), angles)
    return phases if taps.dtype == torch.float64 else phases.to(torch.complex64)


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
