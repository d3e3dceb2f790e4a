"""The network that settings name."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from lipscale.data.memory import require_memory
from lipscale.errors import UserError
from lipscale.layers import mirrored
from lipscale.models.convnet import convnet
from lipscale.models.mlp import mlp
from lipscale.models.parts import UNCONSTRAINED, Parts, parts_of
from lipscale.models.patchnet import LEAST_SIDE, can_mirror, patchnet
from lipscale.models.resnet import resnet18
from lipscale.settings import ModelSettings

DEFAULT_WIDTH = {"patchnet": 64, "resnet18": 64, "convnet": 32, "mlp": 256}
DEFAULT_DEPTH = {"patchnet": 0, "mlp": 3}
# up to this many pixels the MLP serves better than a convolution
TINY_IMAGE = 16 * 16
COPIES = 8  # of the weights that live at once: the optimizer's moments, orthogonalisation in float64


def suitable_model(input_shape: Sequence[int]) -> str:
    """What `auto` takes: an MLP for rows and for tiny or thin images, else patchnet."""
    sides = input_shape[1:]
    return "mlp" if not sides or math.prod(sides) <= TINY_IMAGE or min(sides) < LEAST_SIDE else "patchnet"


def mirrors_by_construction(settings: ModelSettings, input_shape: Sequence[int], width: int) -> bool:
    """Whether a constrained network of this width can have its answers mirrored for less, and not for more."""
    model = suitable_model(input_shape) if settings.model == "auto" else settings.model
    is_ours = model == "patchnet" and settings.layers == "fast"
    return is_ours and can_mirror(width, settings.depth or 0, input_shape[-1])


def build(
    settings: ModelSettings,
    classes: int,
    input_shape: tuple[int, ...],
    *,
    mean: Sequence[float] | None = None,
    constrained: bool = True,
) -> nn.Sequential:
    """The network for inputs (C, H, W) or (F,), or its unconstrained twin; the input layer subtracts the mean."""
    model = suitable_model(input_shape) if settings.model == "auto" else settings.model
    width = settings.width or DEFAULT_WIDTH[model]
    if model != "mlp" and len(input_shape) != 3:
        raise UserError(f"{model} takes images; for rows of {input_shape[0]} numbers use mlp as `model`")
    if settings.mirror and len(input_shape) != 3:
        raise UserError(f"rows of {input_shape[0]} numbers have no mirror image: leave `mirror` out")
    depth = DEFAULT_DEPTH.get(model, 0) if settings.depth is None else settings.depth

    by_construction = settings.mirror and constrained and mirrors_by_construction(settings, input_shape, width)

    def made_of(parts: Parts) -> nn.Sequential:
        if model == "mlp":
            return mlp(classes, input_shape, width, depth=depth, mean=mean, parts=parts)
        if model == "patchnet":
            size = input_shape[1], input_shape[2]
            make = partial(patchnet, image_size=size, depth=depth, mirror=bool(by_construction))
            return make(classes, input_shape[0], width, mean=mean, parts=parts)
        if model == "convnet":
            return convnet(classes, input_shape[0], width, mean=mean, parts=parts)
        return resnet18(classes, input_shape[0], width, image_size=min(input_shape[1:]), mean=mean, parts=parts)

    with torch.device("meta"):  # the twin without memory: what a file says must not fill the machine
        size = sum(parameter.nbytes for parameter in made_of(UNCONSTRAINED).parameters())
    what = f"{model} of width {width}" + (f" and depth {depth}" if model in DEFAULT_DEPTH else "")
    require_memory(COPIES * size, what, "give a smaller `width`")
    net = made_of(parts_of(layers=settings.layers if constrained else "plain", padding=settings.padding))
    return mirrored(net) if settings.mirror and not by_construction else net
