"""Compose a Lipschitz bound over a network, rule by rule."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.parametrize import type_before_parametrizations

from lipscale.errors import UserError
from lipscale.layers import batch_means
from lipscale.layers.evaluation import drop_caches
from lipscale.layers.scale import UnitWeight

Shape = tuple[int, ...]
# (module, bound) -> its Lipschitz bound; `bound(child)` bounds a module inside it, `bound.shape(module)` is its input's
Rule = Callable[[Any, "Walk"], float]
RULES: dict[type[nn.Module], Rule] = {}
# libraries whose rules are registered when one of their modules is met: nobody else need have them installed
PEERS = ("deel", "orthogonium")
# the methods that a subclass of Sequential may replace: none of them decides what is computed
HARMLESS = {"__init__", "__repr__", "extra_repr", "train"}
CALLS = ("__call__", "_call_impl", "_wrapped_call_impl", "_slow_forward", "_compiled_call_impl")
DRY_RUN = 3  # samples: enough to see whether a network keeps their number


def register_rule(kind: type[nn.Module], rule: Rule) -> None:
    """Teach `lipschitz_bound` a module. A rule holds for exactly this type: a subclass may compute something else.

    Args:
        kind: the class of the module.
        rule: (module, bound) -> a proven Lipschitz constant of the module in evaluation. `bound(part)` is the bound of
            a module inside it, `bound.shape(module)` the shape of its input where that is known.

    Example:
        >>> import lipscale, torch
        >>> class Block(torch.nn.Module):
        ...     def __init__(self, branch):
        ...         super().__init__()
        ...         self.branch = branch
        ...     def forward(self, x):
        ...         return x + self.branch(x)
        >>> lipscale.register_rule(Block, lambda block, bound: 1 + bound(block.branch))
        >>> lipscale.lipschitz_bound(Block(torch.nn.Sigmoid()).eval())
        1.25
    """
    RULES[kind] = rule


def lipschitz_bound(net: nn.Module, input_shape: Sequence[int] | None = None) -> float:
    """A proven upper bound on ||f(x) - f(x')|| / ||x - x'||, composed in float64 from the weights as they are.

    It is of the network in evaluation; a module without a rule is an error that names it.

    Args:
        net: a network in evaluation mode.
        input_shape: (C, H, W) or (F,) of one input. With it the bound may be tighter, and layers that broadcast or
            mix samples are refused. Without it the bound holds for every input size on which no layer
            broadcasts or works across samples.

    Returns:
        The bound.

    Example:
        >>> import lipscale
        >>> net = lipscale.models.mlp(3, 4, 8).eval()
        >>> lipscale.set_lipschitz(net, 5.0)
        >>> round(lipscale.lipschitz_bound(net), 4)
        5.0
    """
    return Walk.over(net, input_shape)(net)


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
        numbers = tensor.is_floating_point() or tensor.is_complex()
        if numbers and tensor.dtype not in (torch.float32, torch.float64):
            raise UserError(f"{name} is {tensor.dtype}; certificates need float32 or float64: call net.float()")
        if numbers and not tensor.isfinite().all():
            raise UserError(f"{name} holds NaN or infinite values: no certificate is possible")


def require_faithful(net: nn.Module) -> None:
    """Refuse a network whose copy in ordinary layers might compute something else: by hooks or replaced methods."""
    require_certifiable(net)
    for module in net.modules():
        if not isinstance(module, UnitWeight) and type(module).__module__.split(".")[0] not in PEERS:
            refuse_surprises(module)


class Walk:
    """Bounds modules by their rules, each module once; knows the shapes that a dry run recorded."""

    def __init__(self) -> None:
        self._bounds: dict[nn.Module, float] = {}
        self._shapes: dict[nn.Module, set[tuple[Shape, Shape]]] = {}  # of inputs and outputs

    @classmethod
    def over(cls, net: nn.Module, input_shape: Sequence[int] | None = None) -> Self:
        """A walk over a network that can be certified, from its weights as they are."""
        require_certifiable(net)
        drop_caches(net)
        walk = cls()
        if input_shape is not None:
            walk._shapes = _record_shapes(net, tuple(input_shape))
        return walk

    def __call__(self, module: nn.Module) -> float:
        """The bound of one module."""
        if module in self._bounds:
            return self._bounds[module]
        refuse_surprises(module)
        kind: Any = type_before_parametrizations(module)
        if kind.__module__.split(".")[0] in PEERS:
            import_module("lipscale.bounds.peer_rules")
        rule = RULES.get(kind) or (RULES[nn.Sequential] if is_plain_sequence(module) else None)
        if rule is None:
            raise UserError(
                f"no Lipschitz rule for {kind.__name__}: if you can prove a bound, register it with "
                f"lipscale.register_rule({kind.__name__}, lambda module, bound: ...)"
            )
        bound = float(rule(module, self))
        if not 0 <= bound < math.inf:
            raise UserError(f"{kind.__name__} has no finite bound ({bound})")
        self._bounds[module] = bound
        return bound

    def shapes(self, module: nn.Module) -> set[Shape]:
        """The shapes of the module's inputs without the batch; none where no dry run was made."""
        return {shape for shape, _ in self._shapes.get(module, ())}

    def shape(self, module: nn.Module) -> Shape | None:
        """The shape of the module's input without the batch, if it is known and always the same."""
        found = self.shapes(module)
        return next(iter(found)) if len(found) == 1 else None

    def outputs(self, module: nn.Module) -> Shape:
        """The shape of the module's output without the batch, where a dry run has seen one."""
        ((_, shape),) = self._shapes[module]
        return shape

    def require_equal_shapes(self, module: nn.Module) -> None:
        """Refuse a module whose outputs differ in shape from its inputs: it copies values, or adds copies to others."""
        if any(before != after for before, after in self._shapes.get(module, ())):
            raise UserError(f"{type(module).__name__} broadcasts its inputs, {self.listed(module)}: no bound")

    def require_samples_apart(self, module: nn.Module, dims: Sequence[int]) -> None:
        """Refuse a module that works along the batch, by a dimension of 0 or a negative one that reaches it."""
        ranks = {1 + len(shape) for shape in self.shapes(module)}
        if not dims or any(dim == 0 or any(dim + rank <= 0 for rank in ranks) for dim in dims):
            raise UserError(
                f"{type(module).__name__} works along dimensions {list(dims)}, which mixes samples: no bound"
            )

    def listed(self, module: nn.Module) -> str:
        """The shapes of the module's inputs in words."""
        return f"got inputs of shape {', '.join(map(str, sorted(self.shapes(module))))}"


def on_images(rule: Rule) -> Rule:
    """A rule that holds for images (C, H, W) only: with fewer dimensions torch takes samples for channels."""

    def bounded(module: nn.Module, bound: Walk) -> float:
        if any(len(shape) != 3 for shape in bound.shapes(module)):
            raise UserError(f"{type(module).__name__} takes images (C, H, W), {bound.listed(module)}: no bound")
        return rule(module, bound)

    return bounded


def is_plain_sequence(module: nn.Module) -> bool:
    """Whether a module is a Sequential that runs its parts one after the other, and does nothing else.

    A subclass may have a constructor and names of its own, but no other way to run than its base.
    """
    kind = type_before_parametrizations(module)
    if not isinstance(module, nn.Sequential):
        return False
    between = kind.__mro__[: kind.__mro__.index(nn.Sequential)]
    replaced = {name for base in between for name in vars(base) if callable(getattr(nn.Sequential, name, None))}
    return replaced <= HARMLESS


def refuse_surprises(module: nn.Module) -> None:
    """Hooks and replaced methods compute what no rule can see, and work in place changes the input of other paths."""
    kind = type(module)
    surprises = {
        "forward hooks": module._forward_hooks or module._forward_pre_hooks,
        **{f"a replaced {name}": True for name in vars(module) if callable(getattr(kind, name, None))},
        "a compiled call": vars(module).get("_compiled_call_impl") is not None,
        "a replaced call": any(getattr(kind, name) is not getattr(nn.Module, name) for name in CALLS),
        "inplace=True": getattr(module, "inplace", False),
    }
    for what, found in surprises.items():
        if found:
            raise UserError(f"{kind.__name__} has {what}, which no Lipschitz rule can see: remove it")


@torch.no_grad()
def _record_shapes(net: nn.Module, input_shape: Shape) -> dict[nn.Module, set[tuple[Shape, Shape]]]:
    """The shapes of every module's inputs and outputs, by a dry run."""
    shapes: dict[nn.Module, set[tuple[Shape, Shape]]] = {}

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if inputs and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
            shapes.setdefault(module, set()).add((tuple(inputs[0].shape[1:]), tuple(output.shape[1:])))

    like = next((t for t in [*net.parameters(), *net.buffers()] if t.is_floating_point()), torch.zeros(()))
    with ExitStack() as stack:
        stack.enter_context(batch_means(net))  # shapes do not depend on means that nobody has set yet
        for module in net.modules():
            handle = module.register_forward_hook(record)
            stack.callback(handle.remove)
        try:
            output = net(like.new_zeros(DRY_RUN, *input_shape))
        except (RuntimeError, LookupError, ValueError, TypeError) as error:
            raise UserError(f"the network does not take inputs of shape {input_shape}: {error}") from error
    if not isinstance(output, Tensor) or output.shape[:1] != (DRY_RUN,):
        got = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise UserError(f"expected one output for each of {DRY_RUN} inputs of shape {input_shape}, got {got}")
    return shapes
