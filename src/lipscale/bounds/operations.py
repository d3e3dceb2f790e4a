"""Functions and methods of tensors as the steps that they are: modules with rules, sums, concatenations."""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from lipscale.errors import UserError
from lipscale.layers.norms import ROUNDING


class Kind(Enum):
    """What a step does to its sources: apply a module to one, add them up, or put them side by side."""

    APPLY = "apply"
    SUM = "sum"
    JOIN = "join"


@dataclass(frozen=True)
class Step:
    """One operation on values."""

    node: fx.Node
    kind: Kind
    sources: tuple[fx.Node, ...]
    module: nn.Module | None = None
    axes: tuple[int, ...] | None = None  # along which it works, where samples must not lie
    adds_axis: bool = False


class Elementwise(nn.Module):
    """x -> factor * x + shift with constants that broadcast to x, and x to nothing."""

    def __init__(self, factor: Any = 1.0, shift: Any = 0.0) -> None:
        super().__init__()
        self.factor, self.shift = (torch.as_tensor(c).detach().double().clone() for c in (factor, shift))

    def bound(self) -> float:
        """The largest factor; a number that float32 rounds up counts as rounded."""
        return max(float(c.abs().max()) for c in (self.factor, self.factor.float())) * ROUNDING


def place(node: fx.Node) -> tuple[str, str]:
    """What an operation is called, and the module that it stands in."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    scope = next(reversed(node.meta.get("nn_module_stack", {"": None})), "")
    scope = scope.split("@")[0].removeprefix("net").strip(".")  # a second call of a module has a number there
    name = name.removeprefix("net.")
    return name, "" if scope == name else scope


def refuse(node: fx.Node, why: str) -> NoReturn:
    """Say which operation, and where it stands."""
    name, scope = place(node)
    raise UserError(f"{name}{f' in {scope}' if scope else ''} {why}")


Make = Callable[..., Step]  # (node, *arguments): values are nodes, constants are what they are


def _part(module: Callable[..., nn.Module]) -> Make:
    """A function of one value and of settings, as the module that has them."""

    def make(node: fx.Node, value: Any = None, *args: Any, **kwargs: Any) -> Step:
        value = kwargs.pop("input", value)
        if not isinstance(value, fx.Node) or nodes_in((args, kwargs)):
            refuse(node, "takes values where it should have settings: no rule")
        return Step(node, Kind.APPLY, (value,), module(*args, **kwargs).eval())

    return make


def nodes_in(things: Any) -> list[fx.Node]:
    """The values, sizes and tensors among arguments."""
    found: list[fx.Node] = []
    fx.map_arg(things, found.append)
    return found


def _same(axes: Callable[..., Sequence[int] | None] = lambda *_: None) -> Make:
    """A rearrangement: nothing is changed, and `axes` of its arguments must not be the samples'."""

    def make(node: fx.Node, value: fx.Node, *args: Any, **kwargs: Any) -> Step:
        if any(isinstance(setting, torch.dtype) for setting in (*args, *kwargs.values())):
            refuse(node, "reads the bits of values as another kind of number: no bound")
        found = axes(*args, **kwargs)
        return Step(node, Kind.APPLY, (value,), nn.Identity(), None if found is None else tuple(found))

    return make


def _listed(*dims: Any) -> Sequence[int]:
    return dims[0] if isinstance(dims[0], Sequence) else dims


def _item(node: fx.Node, value: fx.Node, index: Any) -> Step:
    """x[:, ...] takes a part of each sample; of several parts one is taken by its number."""
    if isinstance(index, int) and value.target in SPLITS:
        return Step(node, Kind.APPLY, (value,), nn.Identity())
    places = index if isinstance(index, tuple) else (index,)
    if places[0] != slice(None) or not all(isinstance(place, int | slice | None) for place in places):
        refuse(node, f"takes {index}, which may mix samples or repeat values: no rule")
    return Step(node, Kind.APPLY, (value,), nn.Identity())


def _together(node: fx.Node, tensors: Any, dim: int = 0, *, adds_axis: bool = False) -> Step:
    if not tensors or not all(isinstance(value, fx.Node) for value in tensors):
        refuse(node, "joins a value with a constant: no rule")
    return Step(node, Kind.JOIN, tuple(tensors), axes=(dim,), adds_axis=adds_axis)


def _binary(function: Callable[[Any, Any], Any]) -> Make:
    """Two values may be added or subtracted; with a constant a value may be multiplied and divided, too."""

    def make(node: fx.Node, a: Any, b: Any) -> Step:
        if isinstance(a, fx.Node) and isinstance(b, fx.Node):
            if function not in (operator.add, operator.sub):
                refuse(node, "multiplies or divides values by values, which has no Lipschitz constant")
            return Step(node, Kind.SUM, (a, b))
        value, constant = (a, b) if isinstance(a, fx.Node) else (b, a)
        if not isinstance(constant, int | float | Tensor) or (function is operator.truediv and value is b):
            refuse(node, "divides by a value, or takes what is no number: no rule")
        c = torch.as_tensor(constant).detach().double()
        if function in (operator.mul, operator.truediv):
            c = c if function is operator.mul else 1 / c
            return Step(node, Kind.APPLY, (value,), Elementwise(c))
        sign = -1.0 if function is operator.sub and value is b else 1.0
        return Step(node, Kind.APPLY, (value,), Elementwise(sign, function(0.0, c) if sign > 0 else c))

    return make


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    """Outside of training it is the identity, and a certificate is of that; who sets it by hand means it."""
    if training:
        raise UserError("dropout with training=True drops by chance, in evaluation, too: no bound")
    return nn.Dropout(p)


def _mean(dim: Any = None, keepdim: bool = False) -> nn.Module:
    """The mean over the pixels of images."""
    if not isinstance(dim, Sequence) or sorted(dim) not in ([2, 3], [-2, -1]):
        raise UserError(f"mean over dimensions {dim}: there is a rule for the pixels of images, (2, 3), only")
    return nn.AdaptiveAvgPool2d(1)


def _clamp(min: Any = None, max: Any = None) -> nn.Module:
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        raise UserError("clamp between tensors may broadcast: there is a rule for numbers only")
    return nn.Hardtanh(-math.inf if min is None else min, math.inf if max is None else max)


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    return _filled(layer, weight, bias)


def _conv2d(
    weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> nn.Module:
    inputs, outputs, kernel = weight.shape[1] * groups, weight.shape[0], (weight.shape[2], weight.shape[3])
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias=bias is not None)
    return _filled(layer, weight, bias)


def _filled(layer: Any, weight: Tensor, bias: Tensor | None) -> nn.Module:
    layer.weight = nn.Parameter(weight.detach().clone())  # as it is now: it may be overwritten
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


def _spellings(*names: str) -> list[Any]:
    """A function by all its names: of torch, of its functional package, of tensors; in place or not."""
    forms = [form for name in names for form in (name, f"{name}_")]
    homes = (torch, F, torch._C._nn)
    functions = [getattr(home, form) for home in homes for form in forms if hasattr(home, form)]
    return [*functions, *(form for form in forms if hasattr(Tensor, form))]


def _activation(module: Callable[..., nn.Module], settings: int = 0) -> Callable[..., nn.Module]:
    """The settings of the function are those of the module, but for working in place, which is watched elsewhere."""

    def make(*args: Any, inplace: bool = False, **kwargs: Any) -> nn.Module:
        if not all(isinstance(more, bool) for more in args[settings:]):
            raise TypeError(f"settings that {module} has not: {args[settings:]}")
        return module(*args[:settings], **kwargs)

    return make


PARTS: dict[str, Callable[..., nn.Module]] = {
    "relu": _activation(nn.ReLU),
    "relu6": _activation(nn.ReLU6),
    "leaky_relu": _activation(nn.LeakyReLU, 1),
    "elu": _activation(nn.ELU, 1),
    "silu": _activation(nn.SiLU),
    "hardswish": _activation(nn.Hardswish),
    "gelu": _activation(nn.GELU, 1),
    "tanh": _activation(nn.Tanh),
    "sigmoid": _activation(nn.Sigmoid),
    "hardtanh": _activation(nn.Hardtanh, 2),
    "clamp": _clamp,
    "flatten": lambda start_dim=0, end_dim=-1: nn.Flatten(start_dim, end_dim),
    "max_pool2d": lambda kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False: (
        nn.MaxPool2d(kernel_size, stride or None, padding, dilation, return_indices, ceil_mode)
    ),
    "avg_pool2d": lambda kernel_size, stride=None, *rest, **more: nn.AvgPool2d(
        kernel_size, stride or None, *rest, **more
    ),
    "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d,
    "pixel_shuffle": nn.PixelShuffle,
    "pixel_unshuffle": nn.PixelUnshuffle,
    "mean": _mean,
    "dropout": _dropout,
    "dropout2d": _dropout,
    "linear": _linear,
    "conv2d": _conv2d,
}
BINARY = {
    operator.add: ("add", "iadd"),
    operator.mul: ("mul", "imul"),
    operator.truediv: ("truediv", "itruediv"),
}
SPLITS = _spellings("chunk", "split")
SUBTRACTIONS = [operator.sub, operator.isub, *_spellings("sub", "subtract")]
RESHAPES = _spellings("reshape", "view")
REARRANGEMENTS: dict[Any, Make] = {
    **dict.fromkeys([*RESHAPES, *_spellings("unflatten", "squeeze", "unsqueeze", "contiguous", "clone")], _same()),
    **dict.fromkeys(_spellings("permute"), _same(lambda *dims: _listed(*dims)[1:])),
    **dict.fromkeys(_spellings("transpose"), _same(lambda dim0, dim1: (dim0, dim1))),
    **dict.fromkeys(_spellings("flip"), _same(_listed)),
    **dict.fromkeys(SPLITS, _same(lambda size, dim=0: (dim,))),
}
OPERATIONS: dict[Any, Make] = {
    **{function: _part(make) for name, make in PARTS.items() for function in _spellings(name)},
    **REARRANGEMENTS,
    **{getattr(operator, name): _binary(function) for function, names in BINARY.items() for name in names},
    **{form: _binary(operator.add) for form in _spellings("add")},
    **{form: _binary(operator.sub) for form in SUBTRACTIONS},
    **{form: _binary(operator.mul) for form in _spellings("mul", "multiply")},
    **{form: _binary(operator.truediv) for form in _spellings("div", "divide", "true_divide")},
    **dict.fromkeys((operator.neg, *_spellings("neg")), _part(lambda: Elementwise(-1.0))),
    operator.getitem: _item,
    **dict.fromkeys(_spellings("cat", "concat"), _together),
    **dict.fromkeys(_spellings("stack"), lambda node, tensors, dim=0: _together(node, tensors, dim, adds_axis=True)),
}
