"""Compose a Lipschitz bound over a network, rule by rule."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.parametrize import type_before_parametrizations

from lipscale.errors import UserError
from lipscale.layers.centering import batch_means

Shape = tuple[int, ...]
# (module, bound) -> its Lipschitz bound; `bound(child)` bounds a module inside it, `bound.shape(module)` is its input's
Rule = Callable[[Any, "Walk"], float]
RULES: dict[type[nn.Module], Rule] = {}
# libraries whose rules are registered when one of their modules is met: nobody else need have them installed
PEERS = ("deel", "orthogonium")


def register_rule(kind: type[nn.Module], rule: Rule) -> None:
    """Teach `lipschitz_bound` a module: `register_rule(Swish, lambda module, bound: 1.1)`.

    A container composes the bounds of its parts: `register_rule(Block, lambda block, bound: 1 + bound(block.branch))`.
    A rule holds for exactly this type, not for subclasses, which may compute something else.
    """
    RULES[kind] = rule


def lipschitz_bound(net: nn.Module, input_shape: Sequence[int] | None = None) -> float:
    """A proven upper bound on ||f(x) - f(x')|| / ||x - x'||, composed in float64 from the weights in use.

    Without a shape it holds for every input size; with one, (C, H, W) or (F,), it may be tighter. It is of the network
    in evaluation; a module without a rule is an error that names it.
    """
    require_certifiable(net)
    shapes = {} if input_shape is None else _record_shapes(net, tuple(input_shape))
    return Walk(shapes)(net)


def require_certifiable(net: nn.Module) -> None:
    """Refuse what no certificate can speak of: training mode, reduced precision, weights that are not finite."""
    busy = next((name for name, m in net.named_modules() if m.training), None)
    if busy is not None:
        where = f" ({busy})" if busy else ""
        raise UserError(f"a certificate is of the network in evaluation{where}: call net.eval() first")
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        raise UserError("autocast computes with other weights than the ones certified: leave it first")
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        raise UserError("global forward hooks may change what the network computes: remove them first")
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        if tensor.is_complex():
            raise UserError(f"{name} is {tensor.dtype}; certificates need float32 or float64")
        if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
            raise UserError(f"{name} is {tensor.dtype}; certificates need float32 or float64: call net.float()")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise UserError(f"{name} holds NaN or infinite values: no certificate is possible")


class Walk:
    """Bounds modules by their rules; `shapes` knows the inputs of each, where a dry run recorded them."""

    def __init__(self, shapes: dict[nn.Module, set[Shape]]) -> None:
        self._shapes = shapes

    def __call__(self, module: nn.Module) -> float:
        """The bound of one module."""
        _refuse_surprises(module)
        kind: Any = type_before_parametrizations(module)
        if kind.__module__.split(".")[0] in PEERS:
            import_module("lipscale.bounds.peer_rules")
        rule = RULES.get(kind)
        if rule is None and isinstance(module, nn.Sequential) and kind.forward is nn.Sequential.forward:
            rule = RULES[nn.Sequential]
        if rule is None:
            raise UserError(
                f"no Lipschitz rule for {kind.__name__}: if you can prove a bound, register it with "
                f"lipscale.register_rule({kind.__name__}, lambda module, bound: ...)"
            )
        bound = float(rule(module, self))
        if not 0 <= bound < math.inf:
            raise UserError(f"{kind.__name__} has no finite bound ({bound})")
        return bound

    def shape(self, module: nn.Module) -> Shape | None:
        """The shape of the module's input without the batch, if it is known and always the same."""
        found = self._shapes.get(module, set())
        return next(iter(found)) if len(found) == 1 else None


def _refuse_surprises(module: nn.Module) -> None:
    """Hooks and replaced methods compute what no rule can see, and work in place changes the input of other paths."""
    what = ""
    if module._forward_hooks or module._forward_pre_hooks:
        what = "forward hooks"
    elif "forward" in vars(module) or type(module).__call__ is not nn.Module.__call__:
        what = "a replaced forward or call"
    elif getattr(module, "inplace", False):
        what = "inplace=True"
    if what:
        raise UserError(f"{type(module).__name__} has {what}, which no Lipschitz rule can see: remove it")


@torch.no_grad()
def _record_shapes(net: nn.Module, input_shape: Shape) -> dict[nn.Module, set[Shape]]:
    """The input shapes of every module, by a dry run."""
    shapes: dict[nn.Module, set[Shape]] = {}

    def record(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], torch.Tensor):
            shapes.setdefault(module, set()).add(tuple(inputs[0].shape[1:]))

    like = next((t for t in [*net.parameters(), *net.buffers()] if t.is_floating_point()), torch.zeros(()))
    with ExitStack() as stack:
        stack.enter_context(batch_means(net))  # shapes do not depend on means that nobody has set yet
        for module in net.modules():
            handle = module.register_forward_pre_hook(record)
            stack.callback(handle.remove)
        try:
            net(like.new_zeros(1, *input_shape))
        except (RuntimeError, IndexError, ValueError) as error:
            raise UserError(f"the network does not take inputs of shape {input_shape}: {error}") from error
    return shapes
