"""Patches of an image as channels: lower resolution, nothing lost."""

from torch import Tensor, nn

from lipscale.errors import UserError
from lipscale.layers.layout import is_batch_last


class Patches(nn.Module):
    """Every patch of size x size pixels becomes one pixel with size^2 times the channels: a permutation, an isometry.

    It is torch's PixelUnshuffle with the channels in another order, (row, column, channel): in channels-last memory
    whole runs are copied, which is several times as fast, and the orthogonal layer behind it does not see the order.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, size^2 C, H / size, W / size)."""
        batch, channels, height, width = x.shape
        size, rows, columns = self.size, height // self.size, width // self.size
        if rows * size != height or columns * size != width:
            raise UserError(f"expected sides that are a multiple of {size}, got {height} x {width}: see PadToMultiple")
        if is_batch_last(x):
            pixels = x.permute(1, 2, 3, 0).view(channels, rows, size, columns, size, batch)
            return pixels.permute(2, 4, 0, 1, 3, 5).reshape(-1, rows, columns, batch).permute(3, 0, 1, 2)
        pixels = x.permute(0, 2, 3, 1).reshape(batch, rows, size, columns, size, channels)
        patches = pixels.transpose(2, 3).reshape(batch, rows, columns, size**2 * channels)
        return patches.permute(0, 3, 1, 2)  # channels last in memory

    def extra_repr(self) -> str:
        """The size, for print(net)."""
        return str(self.size)
