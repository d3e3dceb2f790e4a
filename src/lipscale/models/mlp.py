"""A multilayer perceptron for vectors and tiny images."""

from collections import OrderedDict
from collections.abc import Sequence
from math import prod

from torch import nn

from lipscale.errors import UserError
from lipscale.layers import Standardise
from lipscale.models.parts import LIPSCHITZ, Parts


def mlp(
    num_classes: int = 10,
    input_shape: int | Sequence[int] = 64,
    width: int = 256,
    *,
    depth: int = 3,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    parts: Parts = LIPSCHITZ,
) -> nn.Sequential:
    """`depth` hidden layers of `width` units on inputs of `input_shape`, (C, H, W) or a number of features.

    Without hidden layers it is linear: logistic regression whose weights have a Lipschitz constant.
    """
    if width % 2 and depth:
        raise UserError(f"GroupSort2 sorts units in pairs: expected an even width, got {width}")
    if depth < 0:
        raise UserError(f"expected a number of hidden layers, got depth {depth}")
    shape = (input_shape,) if isinstance(input_shape, int) else tuple(input_shape)
    layers: dict[str, nn.Module] = {
        "input": Standardise(mean or [0.0] * shape[0], std),
        "flatten": nn.Flatten(),
    }
    inputs = prod(shape)
    for i in range(depth):
        layers[f"hidden{i + 1}"] = nn.Sequential(parts.linear(inputs, width), parts.activation())
        inputs = width
    layers["head"] = parts.linear(inputs, num_classes)
    return nn.Sequential(OrderedDict(layers))
