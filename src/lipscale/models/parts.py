"""The kits of parts that every model is built from: constrained, the slow reference of it, the unconstrained twin."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torch import nn

from lipscale.errors import UserError
from lipscale.layers import (
    BatchCentering,
    ConvexResidual,
    GroupSort2,
    HalfAbs,
    L2NormPool2d,
    OrthoConv2d,
    OrthoLinear,
    Sum,
)
from lipscale.layers.conv import PaddingMode
from lipscale.layers.families import FAMILIES, Family


@dataclass(frozen=True)
class Parts:
    """What a topology is made of; a model written once against it has a twin for free."""

    conv: Callable[..., nn.Module]
    linear: Callable[..., nn.Module]
    norm: Callable[[int], nn.Module]
    activation: Callable[[], nn.Module]
    fold: Callable[[], nn.Module]  # the activation's cheaper relative
    pool: Callable[[], nn.Module]
    residual: Callable[..., nn.Module]
    batch_last: bool = False  # whether its convolutions train fastest with the batch innermost in memory


def parts_of(*, layers: str = "fast", padding: PaddingMode | None = None) -> Parts:
    """The kit of these layers, whose convolutions pad with zeros or around, or by default as suits the layers.

    Args:
        layers: fast (our own: the family aoc), reference (the peers'), plain (the unconstrained twin's), or the name
            of a family (`lipscale.layers.families.FAMILIES`).
        padding: zeros or circular.

    Returns:
        The kit.

    Example:
        >>> import lipscale
        >>> parts = lipscale.models.parts_of(layers="aol")
        >>> lipscale.models.mlp(3, 4, 8, parts=parts).head
        OrthoLinear(
          8, 3, bias=True
          (source): MatrixOf(
            (kernel): RescaledKernel()
          )
        )
    """
    if layers in FAMILIES:
        return _family_parts(FAMILIES[layers], padding)
    kits = {"fast": lambda: LIPSCHITZ, "reference": reference_parts, "plain": lambda: UNCONSTRAINED}
    if layers not in kits:
        raise UserError(f"expected layers {', '.join([*kits, *FAMILIES])}, got {layers!r}")
    kit = kits[layers]()
    return replace(kit, conv=partial(kit.conv, padding_mode=padding or default_padding(layers)))


def default_padding(layers: str) -> PaddingMode:
    """What convolutions of these layers see beyond the border where nothing else is said."""
    return FAMILIES[layers].paddings[0] if layers in FAMILIES else "zeros"


def _family_parts(family: Family, padding: PaddingMode | None) -> Parts:
    conv = partial(family.conv, padding_mode=padding)
    kit = replace(LIPSCHITZ, conv=conv, linear=family.linear, activation=family.activation, fold=family.fold)
    return replace(kit, batch_last=family.name == "aoc")


def reference_parts() -> Parts:
    """The kit with orthogonium's and torchlip's weights, which the extra `peers` installs."""
    try:
        from lipscale.layers.reference import PeerKernel, PeerMatrix
    except ImportError as error:
        raise UserError(f"the reference layers are an extra: pip install 'lipscale[peers]' ({error})") from None
    return replace(
        LIPSCHITZ, conv=partial(OrthoConv2d, source=PeerKernel), linear=partial(OrthoLinear, source=PeerMatrix)
    )


def _plain_conv(
    inputs: int,
    outputs: int,
    kernel_size: int,
    *,
    stride: int = 1,
    bias: bool = True,
    padding_mode: Literal["zeros", "circular"] = "zeros",
) -> nn.Module:
    padding = (kernel_size - 1) // 2
    return nn.Conv2d(inputs, outputs, kernel_size, stride, padding, bias=bias, padding_mode=padding_mode)


LIPSCHITZ = Parts(
    OrthoConv2d, OrthoLinear, BatchCentering, GroupSort2, HalfAbs, L2NormPool2d, ConvexResidual, batch_last=True
)
UNCONSTRAINED = Parts(
    conv=_plain_conv,
    linear=nn.Linear,
    norm=nn.BatchNorm2d,
    activation=nn.ReLU,
    fold=nn.ReLU,
    pool=lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    residual=Sum,
)
