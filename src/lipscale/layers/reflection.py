"""Features in two parts under reflection, even and odd: a network that answers an image as it answers its mirror image.

Let R mirror an image from left to right. What a map f makes of an image has an even and an odd part,

    s(x) = (f(x) + R f(R x)) / 2,    d(x) = (f(x) - R f(R x)) / 2,    so that s(R x) = R s(x) and d(R x) = -R d(x).

A linear map that commutes with R takes even to even and odd to odd: two blocks of half the size each, which is half of
the products, and a quarter of what orthogonal weights cost. Features are (B, [s | d], H, W): the first half of the
channels is even, the second odd.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lipscale.errors import UserError
from lipscale.layers.activation import HalfAbs
from lipscale.layers.conv import OrthoConv2d
from lipscale.layers.layout import halves, is_batch_last, joined, product
from lipscale.layers.patches import Patches
from lipscale.layers.tracing import is_traced, is_watched

SQRT_HALF = math.sqrt(0.5)


class EvenOdd(nn.Module):
    """The even and the odd part of a convolution with patches of an image and its activation; as Lipschitz as they are.

    || s ||^2 + || d ||^2 is the mean of || f(x) ||^2 and || f(R x) ||^2.
    """

    def __init__(self, patch: int, conv: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.patch = patch
        self.net = nn.Sequential(Patches(patch), conv, activation)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, [s | d], H / patch, W / patch)."""
        parts: Any = self.net
        if self._is_plain() and is_batch_last(x) and parts[1].is_product_on(seen := parts[0](x)):
            return _FoldSides.apply(product(seen, self._parts_of(parts[1].weight), parts[1].scaled_bias()))
        y, mirrored = self.net(torch.cat((x, x.flip(-1)))).unflatten(0, (2, x.shape[0]))
        s = torch.lerp(y, mirrored.flip(-1), 0.5)
        return joined((s, y - s))

    def _is_plain(self) -> bool:
        """Whether it is what it was made as, and nobody watches: export folds parts into others, users add some."""
        parts: Any = self.net
        if [*map(type, parts)] != [Patches, OrthoConv2d, HalfAbs] or any(map(is_watched, (parts, *parts))):
            return False
        return parts[0].size == self.patch and parts[1].kernel_size[1] % 2 == 1

    def _parts_of(self, kernel: Tensor) -> Tensor:
        """The kernels of (K + R K R) / 2 and (K - R K R) / 2, since R K R is a convolution, too; a bias is even."""
        mirrored = kernel.unflatten(1, (self.patch, self.patch, -1)).flip(2, -1).flatten(1, 3)
        even = torch.lerp(kernel, mirrored, 0.5)
        return torch.cat((even, kernel - even))


class EvenOddPatches(nn.Module):
    """Patches of features in two parts as channels: what mirroring does to a patch is even or odd, too.

    Of two mirrored columns l and r the even features are s_l + s_r and d_l - d_r, the odd ones s_l - s_r and d_l + d_r,
    each over sqrt(2): a rotation. A column in the middle stays as it is.
    """

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        """(B, [s | d], H, W) -> (B, [s | d], H / height, W / width), with height * width times the channels."""
        batch, _, height, width = x.shape
        rows, columns = height // self.height, width // self.width
        if (rows * self.height, columns * self.width) != (height, width):
            raise UserError(f"expected sides that are a multiple of {self.height, self.width}, got {height} x {width}")
        if x.shape[1] % 2:
            raise UserError(f"expected features in two parts, an even number of channels, got {x.shape[1]}")
        if is_batch_last(x):
            pixels = x.permute(1, 2, 3, 0).view(2, -1, rows, self.height, columns, self.width, batch)
            return _Rotate.apply(pixels).view(-1, rows, columns, batch).permute(3, 0, 1, 2)
        pixels = x.reshape(batch, 2, x.shape[1] // 2, rows, self.height, columns, self.width)
        return _rotated(pixels).flatten(1, 4)

    def extra_repr(self) -> str:
        """The size, for print(net)."""
        return f"{self.height}, {self.width}"


class EvenOddMap(nn.Module):
    """A map of the even part beside a map of the odd part: block-diagonal, as Lipschitz as the worse of the two.

    It commutes with R where both work pixel by pixel and `odd` is linear.
    """

    def __init__(self, even: nn.Module, odd: nn.Module) -> None:
        super().__init__()
        self.even, self.odd = even, odd

    def forward(self, x: Tensor) -> Tensor:
        """(B, [s | d], ...) -> (B, [s | d], ...)."""
        even: Any = self.even
        if self._is_one_product_on(x):
            weights = torch.stack((even.weight, cast(OrthoConv2d, self.odd).weight))
            return product(x, weights, even.scaled_bias())
        s, d = halves(x)
        return joined((even(s), self.odd(d)))

    def _is_one_product_on(self, x: Tensor) -> bool:
        """Whether both are products of matrices of one size, which saves cutting and joining their channels."""
        even, odd = self.even, self.odd
        return (
            type(even) is type(odd) is OrthoConv2d
            and even.kernel_size == odd.kernel_size == (1, 1)
            and (even.in_channels, even.out_channels) == (odd.in_channels, odd.out_channels)
            and 2 * even.in_channels == x.shape[1]
            and odd.bias is None
            and even.is_product_on(x)
            and odd.is_product_on(x)
        )


class EvenOddActivation(nn.Module):
    """An activation of what the two sides see: (s + d) / sqrt(2) and (s - d) / sqrt(2), rotated back afterwards."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """(B, [s | d], ...) -> (B, [s | d], ...)."""
        if type(self.activation) is HalfAbs and not is_watched(self.activation) and not is_traced():
            return _FoldSides.apply(x)
        s, d = halves(x)
        left, right = self.activation((s + d) * SQRT_HALF), self.activation((s - d) * SQRT_HALF)
        return torch.cat(((left + right) * SQRT_HALF, (left - right) * SQRT_HALF), 1)


class Even(nn.Module):
    """The even part alone: what does not change when the image is mirrored."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, [s | d], ...) -> (B, s, ...)."""
        return halves(x)[0]


def _rotated(pixels: Tensor) -> Tensor:
    """(B, 2, C, rows, height, columns, width) -> (B, 2, width, height, C, rows, columns)."""
    s, d = pixels.permute(1, 6, 0, 4, 2, 3, 5)  # each (width, B, height, C, rows, columns)
    even: list[Tensor] = []
    odd: list[Tensor] = []
    for left in range(len(s) // 2):
        right = len(s) - 1 - left
        even += [(s[left] + s[right]) * SQRT_HALF, (d[left] - d[right]) * SQRT_HALF]
        odd += [(s[left] - s[right]) * SQRT_HALF, (d[left] + d[right]) * SQRT_HALF]
    if len(s) % 2:
        even.append(s[len(s) // 2])
        odd.append(d[len(s) // 2])
    return torch.stack((torch.stack(even, 1), torch.stack(odd, 1)), 1)


class _Rotate(torch.autograd.Function):
    """The same with the batch innermost, written into place; its gradient is the rotation back."""

    @staticmethod
    def forward(ctx: Any, pixels: Tensor) -> Tensor:
        ctx.shape = pixels.shape
        s, d = _axes(pixels)
        patches = pixels.new_empty(2, *s.shape)
        even, odd = patches
        for left in range(len(s) // 2):
            right, slot = len(s) - 1 - left, 2 * left
            torch.add(s[left], s[right], out=even[slot])
            torch.sub(d[left], d[right], out=even[slot + 1])
            torch.sub(s[left], s[right], out=odd[slot])
            torch.add(d[left], d[right], out=odd[slot + 1])
        patches.mul_(SQRT_HALF)
        if len(s) % 2:
            even[-1], odd[-1] = s[len(s) // 2], d[len(s) // 2]
        return patches

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        pixels = grad.new_empty(ctx.shape)
        (s, d), (even, odd) = _axes(pixels), grad
        for left in range(len(s) // 2):
            right, slot = len(s) - 1 - left, 2 * left
            torch.add(even[slot], odd[slot], out=s[left])
            torch.sub(even[slot], odd[slot], out=s[right])
            torch.add(odd[slot + 1], even[slot + 1], out=d[left])
            torch.sub(odd[slot + 1], even[slot + 1], out=d[right])
        pixels.mul_(SQRT_HALF)
        if len(s) % 2:
            s[len(s) // 2], d[len(s) // 2] = even[-1], odd[-1]
        return pixels


def _axes(pixels: Tensor) -> Tensor:
    """(2, C, rows, height, columns, width, B) -> (2, width, height, C, rows, columns, B), a view."""
    return pixels.permute(0, 5, 3, 1, 2, 4, 6)


class _FoldSides(torch.autograd.Function):
    """HalfAbs of both sides, rotated back: with a = s + d and b = s - d, s' = (|a| + |b|) / 2 and d' = (|a| - |b|) / 2.

    What is kept for the gradient is the two signs.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clone()
        s, d = _folded(y)
        a, b = s + d, s - d
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(a.sign(), b.sign())
        torch.lerp(a.abs_(), b.abs_(), 0.5, out=s)
        torch.sub(s, b, out=d)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        sign_a, sign_b = ctx.saved_tensors
        result = grad.clone()
        s, d = _folded(result)
        a = torch.lerp(s, d, 0.5)
        b = (a - d).mul_(sign_b)
        a.mul_(sign_a)
        torch.add(a, b, out=s)
        torch.sub(a, b, out=d)
        return result


def _folded(x: Tensor) -> tuple[Tensor, Tensor]:
    """The channels of both parts that an absolute value is taken of: the first half of each."""
    if x.shape[1] % 4:
        raise UserError(f"HalfAbs folds half of the channels of both parts: expected a multiple of 4, got {x.shape[1]}")
    s, d = x.chunk(2, 1)
    return s.chunk(2, 1)[0], d.chunk(2, 1)[0]
