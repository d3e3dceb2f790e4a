"""Compose a Lipschitz bound over a network, rule by rule."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.parametrize import type_before_parametrizations

from lipscale.bounds.graph import BATCHES, Graph, follow
from lipscale.bounds.layouts import Layout, usual_layouts
from lipscale.errors import UserError
from lipscale.layers import batch_means
from lipscale.layers.evaluation import drop_caches
from lipscale.layers.scale import UnitWeight
from lipscale.layers.tracing import is_watched, onlooker

Shape = tuple[int, ...]
# (module, bound) -> its Lipschitz bound; `bound(child)` bounds a module inside it, `bound.shape(module)` is its input's
Rule = Callable[[Any, "Walk"], float]
RULES: dict[type[nn.Module], Rule] = {}
# libraries whose rules are registered when one of their modules is met: nobody else need have them installed
PEERS = ("deel", "orthogonium")
# the methods that a subclass of Sequential may replace: none of them decides what is computed
HARMLESS = {"__init__", "__repr__", "extra_repr", "train"}
CALLS = ("__call__", "_call_impl", "_wrapped_call_impl", "_slow_forward", "_compiled_call_impl")
# why parts of torch have none
ATTENTION = "attention multiplies values by values, which has no Lipschitz constant on unbounded inputs"
GATES = "gates multiply values by values, which has no Lipschitz constant on unbounded inputs"
REASONS = {
    **dict.fromkeys(("MultiheadAttention", "TransformerEncoderLayer", "TransformerEncoder", "Transformer"), ATTENTION),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "GLU", "Bilinear"), GATES),
    **dict.fromkeys(("Embedding", "EmbeddingBag"), "its inputs are indices, between which there is no distance"),
    "Softplus": "it jumps where it becomes linear, at its threshold",
    "Hardshrink": "it jumps at its threshold",
    "Threshold": "it jumps at its threshold",
}


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
            broadcasts or works across samples. Work in place is looked at in the usual layouts of memory: row-major,
            channels or batch innermost.

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
        self._layouts: dict[nn.Module, set[Layout]] = {}  # of inputs
        self._graphs: dict[nn.Module, Graph] = {}  # of modules without a rule
        self._overwriting: set[nn.Module] = set()  # modules that change their input in place
        self._within: list[nn.Module] = []  # the modules whose rules are at work
        self._names: dict[nn.Module, str] = {}

    @classmethod
    def over(cls, net: nn.Module, input_shape: Sequence[int] | None = None) -> Self:
        """A walk over a network that can be certified, from its weights as they are."""
        require_certifiable(net)
        drop_caches(net)
        walk = cls()
        walk._names = {module: name for name, module in net.named_modules()}
        if input_shape is not None:
            walk._record(net, tuple(input_shape))
            if net in walk._overwriting:
                raise UserError(f"{type(net).__name__} works inplace on its own input, which callers read: no bound")
        return walk

    def __call__(self, module: nn.Module) -> float:
        """The bound of one module."""
        self._require_own_input(module)
        if module in self._bounds:
            return self._bounds[module]
        refuse_surprises(module)
        self._within.append(module)
        bound = float(self._bound(module))
        self._within.pop()
        if not 0 <= bound < math.inf:
            raise UserError(f"{type(module).__name__} has no finite bound ({bound})")
        self._bounds[module] = bound
        return bound

    def _bound(self, module: nn.Module) -> float:
        rule = rule_of(module)
        if rule is not None:
            return rule(module, self)
        # one after the other, in sums and side by side
        return self.graph(module).fold(
            1.0, lambda part, bound: bound * self(part), sum, lambda parts: math.hypot(*parts)
        )

    def graph(self, module: nn.Module) -> Graph:
        """What a module without a rule computes, by torch.fx."""
        if module not in self._graphs:
            try:
                self._graphs[module] = self._followed(module)
            except UserError as error:
                kind, name = type_before_parametrizations(module).__name__, self._names.get(module)
                raise UserError(
                    f"no Lipschitz rule for {kind}{f' ({name})' if name else ''}: {error}; if you can prove a bound, "
                    f"register it with lipscale.register_rule({kind}, lambda module, bound: ...)"
                ) from error
        return self._graphs[module]

    def _followed(self, module: nn.Module) -> Graph:
        kind = type_before_parametrizations(module)
        if is_of_a_library(module):
            raise UserError(REASONS.get(kind.__name__, "nobody has proven one"))
        if not self.shapes(module):
            raise UserError("torch.fx could follow it for an `input_shape`")
        # row-major, too: what makes the inputs may lay out other numbers of samples otherwise
        row_major = {usual_layouts((batch, *shape))[0] for shape in self.shapes(module) for batch in BATCHES}
        layouts = row_major | self._layouts.get(module, set())
        graph, shapes = follow(module, layouts, is_leaf, refuse_surprises)
        for made, found in shapes.items():
            self._shapes.setdefault(made, set()).update(found)
        return graph

    def _record(self, net: nn.Module, input_shape: Shape) -> None:
        """What every module takes and gives, and which overwrite their inputs, by dry runs in the usual layouts."""
        versions: dict[nn.Module, int] = {}

        @onlooker
        def count(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if (x := _first(args, kwargs)) is not None:
                versions[module] = x._version

        @onlooker
        def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if (x := _first(args, kwargs)) is not None and isinstance(output, Tensor):
                self._shapes.setdefault(module, set()).add((tuple(x.shape[1:]), tuple(output.shape[1:])))
                self._layouts.setdefault(module, set()).add(Layout.seen_in(x))
                if x._version != versions[module]:
                    self._overwriting.add(module)

        like = next((t for t in [*net.parameters(), *net.buffers()] if t.is_floating_point()), torch.zeros(()))
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))  # versions are counted outside of it only
            stack.enter_context(torch.no_grad())
            stack.enter_context(batch_means(net))  # shapes do not depend on means that nobody has set yet
            for module in net.modules():
                stack.callback(module.register_forward_pre_hook(count, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(record, with_kwargs=True).remove)
            first, *others = [layout for batch in BATCHES for layout in usual_layouts((batch, *input_shape))]
            try:
                output = net(first.within(like.new_zeros(first.extent)))
            except (RuntimeError, LookupError, ValueError, TypeError) as error:
                raise UserError(f"the network does not take inputs of shape {input_shape}: {error}") from error
            for layout in others:
                with suppress(Exception):  # a network that fails on it answers nothing that could be wrong
                    net(layout.within(like.new_zeros(layout.extent)))
        if not isinstance(output, Tensor) or output.shape[:1] != BATCHES[:1]:
            got = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            raise UserError(f"expected one output for each of {BATCHES[0]} inputs of shape {input_shape}, got {got}")

    def _require_own_input(self, module: nn.Module) -> None:
        """Refuse work in place on a value that others read, too."""
        if not self._shapes:
            if getattr(module, "inplace", False):
                raise UserError(
                    f"{type(module).__name__} has inplace=True: what it overwrites is seen for an `input_shape` only"
                )
            return
        parent = self._within[-1] if self._within else None
        # in a sequence nobody else reads it, and a graph is watched while it runs
        if module in self._overwriting and parent and rule_of(parent) and not is_plain_sequence(parent):
            names = type(module).__name__, type(parent).__name__
            raise UserError("{} works inplace on what others in {} read: no bound".format(*names))

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


def rule_of(module: nn.Module) -> Rule | None:
    """The rule of exactly this type."""
    kind: Any = type_before_parametrizations(module)
    if kind.__module__.split(".")[0] in PEERS:
        import_module("lipscale.bounds.peer_rules")
    return RULES.get(kind) or (RULES[nn.Sequential] if is_plain_sequence(module) else None)


def is_of_a_library(module: nn.Module) -> bool:
    """Whether a module is no user's own: what it computes is known, and so is why it has no rule."""
    home = type_before_parametrizations(module).__module__
    return home.startswith("torch.") or home.split(".")[0] in (*PEERS, "lipscale")


def is_leaf(module: nn.Module) -> bool:
    """Whether torch.fx stops at a module: one with a rule, or of a library."""
    return rule_of(module) is not None or is_of_a_library(module)


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
    """Hooks and replaced methods compute what no rule can see."""
    kind = type(module)
    surprises = {
        "forward hooks": is_watched(module),
        **{f"a replaced {name}": True for name in vars(module) if callable(getattr(kind, name, None))},
        "a compiled call": vars(module).get("_compiled_call_impl") is not None,
        "a replaced call": any(getattr(kind, name) is not getattr(nn.Module, name) for name in CALLS),
    }
    for what, found in surprises.items():
        if found:
            raise UserError(f"{kind.__name__} has {what}, which no Lipschitz rule can see: remove it")


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """What a module is called with, if that is a batch."""
    given = next(iter((*args, *kwargs.values())), None)
    return given if isinstance(given, Tensor) and given.ndim else None
