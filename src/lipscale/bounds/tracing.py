"""The operations of a module in order, by torch.fx: it runs on a stand-in for its input, whose questions are noted."""

import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from lipscale.errors import UserError

TORCH = str(Path(torch.__file__).parent)
IN_PLACE = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")


class _Value(fx.Proxy):
    """A stand-in for a tensor. It is none, and code that asks may go another way than it does for real: remembered."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # isinstance comes here; torch's own files ask for other reasons, but for the one function that passes it on
        asking = sys._getframe(1).f_code
        if asking is torch.is_tensor.__code__ or not asking.co_filename.startswith(TORCH):
            self.tracer.asked = True  # type: ignore[attr-defined]
        return _Value

    def __getattr__(self, k: str) -> fx.proxy.Attribute:
        """A method or a property; sizes are asked for at once, so that the graph asks where the code does."""
        attribute = super().__getattr__(k)
        if k in ("shape", "ndim"):
            attribute.node  # noqa: B018
        return attribute


def _in_place(name: str) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    target = getattr(operator, f"i{name}")
    return lambda value, other: value.tracer.create_proxy("call_function", target, (value, other), {})


for _name in IN_PLACE:  # torch.fx would take x += y for x = x + y, which leaves other holders of x alone
    setattr(_Value, f"__i{_name}__", _in_place(_name))


class _Tracer(fx.Tracer):
    """Follows a module down to the parts that are `leaves`, and remembers every question that has no answer."""

    def __init__(self, is_leaf: Callable[[nn.Module], bool], enter: Callable[[nn.Module], None]) -> None:
        super().__init__()
        self.leaf, self.enter, self.asked = is_leaf, enter, False

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is a part of its own; what is not must hold no surprises."""
        if self.leaf(m):
            return True
        self.enter(m)
        return False

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """A value."""
        return _Value(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """A decision that depends on values; remembered, because a try may swallow the error."""
        self.asked = True
        return super().to_bool(obj)

    def iter(self, obj: fx.Proxy) -> Any:
        """A loop over a value, likewise."""
        self.asked = True
        return super().iter(obj)


class _Only(nn.Module):
    """Calls a module with one input, so that its other arguments are what they are by default."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


def trace(
    module: nn.Module, is_leaf: Callable[[nn.Module], bool], enter: Callable[[nn.Module], None]
) -> fx.GraphModule:
    """The module's operations in order, as functions of one input; an error says what cannot be followed."""
    root, tracer = _Only(module), _Tracer(is_leaf, enter)
    root.train(module.training)
    try:
        graph = tracer.trace(root)
        asked = tracer.asked
    except UserError:
        raise
    except Exception as error:  # whatever a user's code may raise on a value that is none
        raise UserError(f"torch.fx cannot follow it ({brief(error)})") from error
    if asked:
        raise UserError("torch.fx cannot follow it (it decides by the values of its input, or asks what kind it is of)")
    return fx.GraphModule(root, graph)


def brief(error: Exception) -> str:
    """The first line of an error, or its kind."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]
