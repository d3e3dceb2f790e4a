"""Convolutions on a torus by their symbols: one matrix a frequency, for images of one size."""

import math
from typing import Any, cast

import torch
from torch import Tensor

from lipscale.errors import UserError
from lipscale.layers.operators import Operator, PlainLayer
from lipscale.layers.scale import ScaledLayer


def dft(side: int, like: Tensor) -> Tensor:
    """The unitary matrix e^{-2 pi i jk / n} / sqrt(n), each entry right to the last digits.

    Products with it cost little more than an FFT on images of some ten pixels, and unlike an FFT's their rounding error
    is that of any product.
    """
    steps = torch.arange(side, device=like.device)
    angles = -2 * math.pi * (torch.outer(steps, steps) % side).double() / side
    return torch.polar(torch.full_like(angles, side**-0.5), angles).to(_complex(like))


def _complex(like: Tensor) -> torch.dtype:
    return torch.complex128 if like.dtype == torch.float64 else torch.complex64


class CircularOperator(Operator):
    """y = F* (W_f (F x)_f)_f + scale b on images of one size: F the unitary transform, W_f a matrix for each frequency.

    Its norm is the largest ||W_f||. Frequencies come in pairs, of which the half spectrum keeps one. The weight
    (h, w / 2 + 1, outputs, inputs, 2) holds real and imaginary parts.
    """

    size: tuple[int, int]
    SHAPE = ("size",)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, h, w) -> (B, outputs, h, w)."""
        weight, bias = self.weight, self.scaled_bias()  # type: ignore[attr-defined]
        if tuple(x.shape[-2:]) != self.size:
            self.refuse_size(x)
        symbols = torch.view_as_complex(weight)  # (h, w', o, i)
        rows, columns = dft(self.size[0], weight), dft(self.size[1], weight)[:, : symbols.shape[1]]
        twice = x.new_full((symbols.shape[1],), 2.0, dtype=weight.dtype)  # each frequency stands for its mirror image
        twice[0] = 1.0
        if self.size[1] % 2 == 0:
            twice[-1] = 1.0
        spectrum = rows @ (x.to(rows.dtype) @ columns)  # (B, i, h, w')
        spectrum = symbols @ spectrum.permute(2, 3, 1, 0)  # (h, w', o, B)
        y = (rows.conj() @ spectrum.permute(3, 2, 0, 1) @ (columns.conj() * twice).mT).real
        return y if bias is None else y + bias[:, None, None]

    def refuse_size(self, x: Tensor) -> None:
        """Another size needs another transform."""
        made, got = (f"{h} x {w}" for h, w in (self.size, x.shape[-2:]))
        raise UserError(
            f"{self.name} has a transform for images of {made}, got {got}: build the network anew for these"
        )

    @property
    def name(self) -> str:
        """What errors call it."""
        return type(self).__name__


class CircularConv2d(CircularOperator, ScaledLayer):
    """A convolution of stride 1 with circular padding; the first image that it sees decides on the size.

    `source` has the buffer `size`, which is (0, 0) until then.
    """

    def __init__(self, source: Any, out_channels: int, *, bias: bool = True, family: str = "") -> None:
        super().__init__(source, out_channels, bias=bias)
        self.family = family

    @property
    def size(self) -> tuple[int, int]:  # type: ignore[override]
        """Height and width of the images that the transform is made for."""
        height, width = cast(Any, self.source).size.tolist()
        return height, width

    @property
    def name(self) -> str:
        """The layer with its family."""
        return f"a convolution of layers {self.family}"

    def forward(self, x: Tensor) -> Tensor:
        """See `CircularOperator`."""
        inputs = cast(Any, self.source).inputs
        if x.ndim != 4 or x.shape[1] != inputs:
            raise UserError(f"{self.name} takes images (B, {inputs}, H, W), got {tuple(x.shape)}")
        if self.size == (0, 0):
            cast(Any, self.source).size.copy_(torch.tensor(x.shape[-2:]))
            self.drop_cache()
        # complex numbers have no half precision
        with torch.autocast(x.device.type, enabled=False):
            return CircularOperator.forward(self, x if x.dtype == self.sigma.dtype else x.to(self.sigma.dtype))


class PlainCircular(CircularOperator, PlainLayer):
    """The same, with its symbols written out."""

    def __init__(self, layer: CircularConv2d) -> None:
        if layer.size == (0, 0):
            raise UserError(f"{layer.name} has seen no image yet, so its size is open: call the network once")
        super().__init__(layer)
