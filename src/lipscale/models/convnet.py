"""A small convolutional network for images of any size."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from lipscale.errors import UserError
from lipscale.layers import PadToMultiple, Standardise
from lipscale.models.parts import LIPSCHITZ, Parts


def convnet(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 32,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    parts: Parts = LIPSCHITZ,
) -> nn.Sequential:
    """Six scaled layers: five 3x3 convolutions, the second and fourth at stride 2, and a linear head.

    Sizes that are no multiple of the total stride are padded with zeros, which changes no distance.
    """
    if width % 2:
        raise UserError(f"GroupSort2 sorts channels in pairs: expected an even width, got {width}")

    def unit(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        conv = parts.conv(inputs, outputs, 3, stride=stride, bias=False)
        return nn.Sequential(conv, parts.norm(outputs), parts.activation())

    return nn.Sequential(
        OrderedDict(
            input=Standardise(mean or [0.0] * in_channels, std),
            pad=PadToMultiple(4),
            conv1=unit(in_channels, width, 1),
            conv2=unit(width, 2 * width, 2),
            conv3=unit(2 * width, 2 * width, 1),
            conv4=unit(2 * width, 4 * width, 2),
            conv5=unit(4 * width, 4 * width, 1),
            pool=parts.pool(),
            head=parts.linear(4 * width, num_classes),
        )
    )
