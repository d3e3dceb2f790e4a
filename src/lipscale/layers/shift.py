"""Shift a few channels by a pixel: how a network without convolutions sees its neighbours."""

import torch
from torch import Tensor, nn

SHARE = 8  # every eighth channel moves in each of the four directions


class ShiftChannels(nn.Module):
    """An eighth of the channels moves up, one down, one left, one right, by `reach` pixels; the others stay.

    Around the border it is a permutation of the pixels, an isometry; with zeros it drops what leaves the image.
    """

    def __init__(self, reach: int = 1, *, padding_mode: str = "circular") -> None:
        super().__init__()
        self.reach, self.padding_mode = reach, padding_mode

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        some = max(1, x.shape[1] // SHARE)
        parts = list(x.split([some, some, some, some, x.shape[1] - 4 * some], 1))
        for i, (axis, step) in enumerate([(-2, -1), (-2, 1), (-1, -1), (-1, 1)]):
            parts[i] = self._moved(parts[i], step * self.reach, axis)
        return torch.cat(parts, 1)

    def _moved(self, x: Tensor, step: int, axis: int) -> Tensor:
        if self.padding_mode == "circular":
            return x.roll(step, axis)
        kept = max(0, x.shape[axis] - abs(step))
        blank = torch.zeros_like(x.narrow(axis, 0, x.shape[axis] - kept))
        moved = x.narrow(axis, 0 if step > 0 else x.shape[axis] - kept, kept)
        return torch.cat((blank, moved) if step > 0 else (moved, blank), axis)

    def extra_repr(self) -> str:
        """The reach, for print(net)."""
        return f"{self.reach}, padding_mode={self.padding_mode!r}"
