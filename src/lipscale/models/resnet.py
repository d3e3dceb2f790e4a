"""The paper's Lipschitz ResNet-18, row by row of its architecture table (Tab. 3)."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from lipscale.errors import UserError
from lipscale.layers import PadToMultiple, Standardise
from lipscale.models.parts import LIPSCHITZ, Parts


def resnet18(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    *,
    image_size: int = 32,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    parts: Parts = LIPSCHITZ,
) -> nn.Sequential:
    """ResNet-18 with 18 scaled layers along its path: sigma^18 = L.

    From 64 x 64 pixels on the stem has stride 2, so that the stages see the sizes of the paper's table.
    Sizes that are no multiple of the total stride are padded with zeros, which changes no distance.
    """
    if width % 2:
        raise UserError(f"GroupSort2 sorts channels in pairs: expected an even width, got {width}")
    stem_stride = 2 if image_size >= 64 else 1
    return nn.Sequential(
        OrderedDict(
            input=Standardise(mean or [0.0] * in_channels, std),
            pad=PadToMultiple(8 * stem_stride),
            stem=nn.Sequential(
                parts.conv(in_channels, width, 3, stride=stem_stride, bias=False),
                parts.norm(width),
                parts.activation(),
            ),
            stage1=_stage(parts, width, width, stride=1),
            stage2=_stage(parts, width, 2 * width, stride=2),
            stage3=_stage(parts, 2 * width, 4 * width, stride=2),
            stage4=_stage(parts, 4 * width, 8 * width, stride=2),
            pool=parts.pool(),
            head=parts.linear(8 * width, num_classes),
        )
    )


def _stage(parts: Parts, inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    """Two blocks; the first one changes resolution and channels."""
    return nn.Sequential(
        _basic_block(parts, inputs, outputs, stride=stride), _basic_block(parts, outputs, outputs, stride=1)
    )


def _basic_block(parts: Parts, inputs: int, outputs: int, *, stride: int) -> nn.Module:
    """Conv3x3 -> centering -> GroupSort2 -> Conv3x3, blended with an identity or PixelUnshuffle + Conv1x1 skip."""
    branch = nn.Sequential(
        parts.conv(inputs, outputs, 3, stride=stride, bias=False),
        parts.norm(outputs),
        parts.activation(),
        parts.conv(outputs, outputs, 3),
    )
    if stride == 1:
        return parts.residual(branch)
    skip = nn.Sequential(nn.PixelUnshuffle(2), parts.conv(4 * inputs, outputs, 1, bias=False))
    return parts.residual(branch, skip)
