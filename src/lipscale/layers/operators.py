"""Layers that are more than one product with a weight: what they compute, and their plain form with it written out."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipscale.errors import UserError
from lipscale.layers.norms import adjoint
from lipscale.layers.scale import ScaledLayer


class Operator:
    """What a layer computes from its weight in use, sigma * W, from sigma and from its bias in use.

    Each comes twice: with a `ScaledLayer`, whose weight is made of raw parameters, and with a `PlainLayer`.
    """

    weight: Any
    sigma: Tensor
    padding_mode = "zeros"
    SHAPE: tuple[str, ...] = ("padding_mode",)  # what else decides, for a plain copy


class PlainLayer(nn.Module):
    """Weight, bias and sigma of a layer as they are in use, in evaluation."""

    sigma: Tensor

    def __init__(self, layer: Any) -> None:
        super().__init__()
        bias = layer.scaled_bias()
        self.weight = nn.Parameter(layer.weight.detach().clone())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self.register_buffer("sigma", layer.sigma.clone())
        for name in layer.SHAPE:
            setattr(self, name, getattr(layer, name))

    def scaled_bias(self) -> Tensor | None:
        """The bias is one already."""
        return self.bias


def product(x: Tensor, weight: Tensor, bias: Tensor | None, padding_mode: str) -> Tensor:
    """A matrix times x (..., C), or a convolution of odd size that keeps height and width."""
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    padding = weight.shape[-1] // 2
    if padding and padding_mode == "circular":
        if min(x.shape[-2:]) < padding:
            raise UserError(
                f"a kernel of {weight.shape[-1]} pixels wraps twice around {tuple(x.shape[-2:])}: use zeros"
            )
        x, padding = F.pad(x, [padding] * 4, mode="circular"), 0
    return F.conv2d(x, weight, bias, padding=padding)


class PotentialOperator(Operator):
    """y = sigma (x - 2 M^T relu(M x + b)) with ||M|| <= 1: a step down the gradient of a convex function.

    Its Jacobian is I - 2 M^T D M with D between 0 and I, so its eigenvalues are between 1 - 2 ||M||^2 and 1. In the
    scale of the network, with W = sigma M: y = sigma x - 2 / sigma W^T relu(W x + scale b).
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) -> (B, C, ...)."""
        weight = self.weight
        inner = torch.relu(product(x, weight, self.scaled_bias(), self.padding_mode))  # type: ignore[attr-defined]
        back = weight.mT if weight.ndim == 2 else adjoint(weight)
        return self.sigma * x - 2 / self.sigma * product(inner, back, None, self.padding_mode)


class Potential(PotentialOperator, ScaledLayer):
    """The convex potential layer (Meunier et al., 2022; Araujo et al., 2023): a residual block of equal widths."""

    def __init__(self, source: Any, channels: int, *, padding_mode: str = "zeros") -> None:
        super().__init__(source, channels, bias=True)  # without a bias it could not bend away from the origin
        self.padding_mode = padding_mode


class PlainPotential(PotentialOperator, PlainLayer):
    """The same, with its weight written out."""


class ExponentialOperator(Operator):
    """y = sigma (x + S x + S^2 x / 2 + S^3 x / 6) + scale b with S skew, its channels padded and cut to size.

    For ||S||^2 <= 3 it is 1-Lipschitz: an eigenvalue i t of S becomes one of squared modulus 1 - t^4 / 12 + t^6 / 36.
    """

    in_channels: int
    out_channels: int
    SHAPE = ("padding_mode", "in_channels", "out_channels")

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) -> (B, out_channels, ...)."""
        weight = self.weight
        dim = -1 if weight.ndim == 2 else 1
        if x.shape[dim] != self.in_channels:
            raise UserError(f"expected {self.in_channels} channels, got inputs of shape {tuple(x.shape)}")
        missing = len(weight) - self.in_channels
        x = F.pad(x, (0, missing) if dim == -1 else (0, 0, 0, 0, 0, missing)) if missing else x
        y = x
        for factor in (3, 2):  # Horner's scheme; W = sigma S
            y = x + product(y, weight, None, self.padding_mode) / (factor * self.sigma)
        y = (self.sigma * x + product(y, weight, None, self.padding_mode)).narrow(dim, 0, self.out_channels)
        bias = self.scaled_bias()  # type: ignore[attr-defined]
        if bias is None:
            return y
        return y + (bias if dim == -1 else bias[:, None, None])


class Exponential(ExponentialOperator, ScaledLayer):
    """The skew orthogonal layer (Singla and Feizi, 2021), with three powers."""

    def __init__(
        self, source: Any, in_channels: int, out_channels: int, *, bias: bool = True, padding_mode: str = "zeros"
    ) -> None:
        super().__init__(source, out_channels, bias=bias)
        self.in_channels, self.out_channels, self.padding_mode = in_channels, out_channels, padding_mode


class PlainExponential(ExponentialOperator, PlainLayer):
    """The same, with its weight written out."""
