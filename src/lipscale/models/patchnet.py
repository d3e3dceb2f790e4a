"""A network of merged patches: what accuracy and certified accuracy cost least time with, for images of any size."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import nn

from lipscale.errors import UserError
from lipscale.layers import (
    BatchLast,
    Even,
    EvenOdd,
    EvenOddActivation,
    EvenOddMap,
    EvenOddPatches,
    PadToMultiple,
    Patches,
    Standardise,
)
from lipscale.models.parts import LIPSCHITZ, Parts

LEAST_SIDE = 4  # two patches of 2 x 2
GRID = 16  # patches along a side that the stem sees
MERGES = 3  # to a grid of 2 x 2
LARGEST_OVERLAPPING = 4  # larger patches see enough, and a 3x3 kernel of their channels would be too large


def can_mirror(width: int, depth: int, columns: int) -> bool:
    """Whether features have two parts with two halves, and zeros around an image as many on the left as on the right.

    Residual 3x3 blocks would have to be mirrored, too.
    """
    return width % 4 == 0 and depth == 0 and columns % 2 == 0


def patchnet(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    *,
    image_size: int | tuple[int, int] = 32,
    depth: int = 0,
    mirror: bool = False,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    parts: Parts = LIPSCHITZ,
) -> nn.Sequential:
    """Patches -> 3x3 convolution, then three times: merge 2 x 2 patches -> 1x1 convolution; two dense layers.

    Patches are cut so that the stem sees a grid of about 16 x 16, with `width` channels; the first two merges double
    them. With `mirror` features have an even and an odd part under reflection (`layers.EvenOdd`): an image and its
    mirror image get one answer, for half the products. `depth` residual 3x3 blocks may follow each merge: they cost
    more time than all else, and at an equal time did not pay (docs/CIFAR_TRIED.md). Nothing is normalised: biases
    suffice. Sizes that do not fit are padded with zeros, which changes no distance.
    """
    sides = (image_size, image_size) if isinstance(image_size, int) else image_size
    patch = max(2, min(sides) // GRID)
    _require_sizes(width, depth, sides, patch, mirror=mirror)
    multiple = patch * 2**MERGES
    kernel_size = 3 if patch <= LARGEST_OVERLAPPING else 1

    def mapped(make: Callable[..., nn.Module], inputs: int, outputs: int, *shape: int) -> list[nn.Module]:
        """A layer and its activation; of features in two parts one layer for each."""
        if not mirror:
            return [make(inputs, outputs, *shape), parts.fold()]
        even, odd = (make(inputs // 2, outputs // 2, *shape, bias=bias) for bias in (True, False))
        return [EvenOddMap(even, odd), EvenOddActivation(parts.fold())]

    first = parts.conv(patch**2 * in_channels, width // (2 if mirror else 1), kernel_size), parts.fold()
    layers: dict[str, nn.Module] = {
        "input": Standardise(mean or [0.0] * in_channels, std),
        "pad": PadToMultiple(multiple, centred=mirror),
        **({"layout": BatchLast()} if mirror and parts.batch_last else {}),
        "stem": EvenOdd(patch, *first) if mirror else nn.Sequential(Patches(patch), *first),
    }
    channels = width
    for i in range(MERGES):  # (B, c, H, W) -> (B, outputs, H / 2, W / 2)
        outputs = min(2 * channels, 4 * width)
        merge = [EvenOddPatches(2, 2) if mirror else Patches(2), *mapped(parts.conv, 4 * channels, outputs, 1)]
        channels = outputs
        blocks = [parts.residual(nn.Sequential(parts.conv(channels, channels, 3), parts.fold())) for _ in range(depth)]
        layers[f"merge{i + 1}"] = nn.Sequential(*merge, *blocks)
    rows, columns = (-(-side // multiple) for side in sides)
    layers["flatten"] = nn.Sequential(EvenOddPatches(rows, columns), nn.Flatten()) if mirror else nn.Flatten()
    layers["dense"] = nn.Sequential(*mapped(parts.linear, rows * columns * channels, channels))
    if mirror:
        layers["even"] = Even()
    layers["head"] = parts.linear(channels // 2 if mirror else channels, num_classes)
    return nn.Sequential(OrderedDict(layers))


def _require_sizes(width: int, depth: int, sides: tuple[int, int], patch: int, *, mirror: bool) -> None:
    if width % 2:
        raise UserError(f"patchnet folds half of its channels: expected an even width, got {width}")
    if mirror and not can_mirror(width, depth, sides[1]):
        raise UserError(
            "a mirrored patchnet has a width that is a multiple of 4, depth 0, and images of an even width, got "
            f"{width}, {depth} and {sides[1]}"
        )
    if min(sides) < LEAST_SIDE:
        raise UserError(
            f"patchnet sees patches of {patch} x {patch} pixels: for images of side {min(sides)} use mlp as `model`"
        )
