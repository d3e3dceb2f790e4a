"""Affine maps without weights to learn. Input normalisation is part of the network: certificates are in input units."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipscale.errors import UserError


def per_channel(values: Tensor, x: Tensor) -> Tensor:
    """Values (C,) shaped for x (B, C, ...) and nothing else: broadcasting would copy x, and so expand distances."""
    if x.ndim < 2 or x.shape[1] != len(values):
        raise UserError(f"expected inputs (B, {len(values)}, ...), got {tuple(x.shape)}")
    if not x.is_floating_point():  # bytes would pass for numbers up to 255
        raise UserError(f"expected inputs of floating point numbers, got {x.dtype}: divide bytes by 255, for one")
    return values.view(-1, *[1] * (x.ndim - 2))


class Standardise(nn.Module):
    """x -> (x - mean) / std, channel by channel; by default the mean only, which keeps distances as they are.

    With a std its Lipschitz constant is 1 / min(std), and the network's bound counts it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float] | None = None) -> None:
        super().__init__()
        if std is not None and not all(s > 0 for s in std):
            raise UserError(f"expected every std > 0, got {list(std)}")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.get_default_dtype()))
        self.register_buffer("std", torch.ones_like(self.mean) if std is None else torch.tensor(std))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) -> (B, C, ...)."""
        return (x - per_channel(self.mean, x)) / per_channel(self.std, x)


class PadToMultiple(nn.Module):
    """Pad height and width with zeros up to a multiple: an isometry. Below, and right, or `centred` on both sides."""

    def __init__(self, multiple: int, *, centred: bool = False) -> None:
        super().__init__()
        self.multiple, self.centred = multiple, centred

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H', W')."""
        below, sides = -x.shape[-2] % self.multiple, -x.shape[-1] % self.multiple
        left = sides // 2 if self.centred else 0
        return F.pad(x, (left, sides - left, 0, below)) if below or sides else x

    def extra_repr(self) -> str:
        """The multiple, for print(net)."""
        return f"{self.multiple}{', centred=True' if self.centred else ''}"


class Scale(nn.Module):
    """x -> factor * x."""

    factor: Tensor

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(float(factor)))

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return self.factor * x


class Shift(nn.Module):
    """x -> x + shift, channel by channel: what centering is once training is over."""

    shift: Tensor

    def __init__(self, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) -> (B, C, ...)."""
        return x + per_channel(self.shift, x)
