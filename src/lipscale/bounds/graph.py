"""What a module of a user's own computes, as torch.fx sees it: parts applied to values, sums and concatenations."""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from lipscale.bounds.layouts import Layout
from lipscale.bounds.operations import (
    OPERATIONS,
    REARRANGEMENTS,
    RESHAPES,
    SPLITS,
    Elementwise,
    Kind,
    Step,
    nodes_in,
    refuse,
)
from lipscale.bounds.tracing import brief, trace
from lipscale.bounds.watch import Watch
from lipscale.errors import UserError
from lipscale.layers import batch_means

T = TypeVar("T")
Shape = tuple[int, ...]
# what looks at a value's size and not at the value
SIZES = ("size", "dim", "numel", "shape", "ndim")
# samples in the runs that are checked: a network that counts on one of these numbers fails with the other
BATCHES = (3, 1)


@dataclass(frozen=True)
class Graph:
    """The steps from a module's input to its output, in the order in which they run."""

    start: fx.Node
    steps: tuple[Step, ...]
    end: fx.Node

    def fold(
        self,
        value: T,
        apply: Callable[[nn.Module, T], T],
        total: Callable[[Sequence[T]], T],
        join: Callable[[Sequence[T]], T],
    ) -> T:
        """What becomes of a value of the input where steps act on it so."""
        values = {self.start: value}
        for step in self.steps:
            sources = [values[node] for node in step.sources]
            if step.kind is Kind.APPLY:
                assert step.module is not None
                values[step.node] = apply(step.module, sources[0])
            else:
                values[step.node] = (total if step.kind is Kind.SUM else join)(sources)
        return values[self.end]


def follow(
    module: nn.Module,
    layouts: Iterable[Layout],
    is_leaf: Callable[[nn.Module], bool],
    enter: Callable[[nn.Module], None],
) -> tuple[Graph, dict[nn.Module, set[tuple[Shape, Shape]]]]:
    """The module as a graph for inputs in these layouts, and the shapes that parts made of functions see.

    The graph is run beside the module itself and must compute the same, with several samples and with one: what
    torch.fx has missed (a context, a state, chance) shows. Every step is checked to keep samples apart. Both are
    watched: code that asks whether it is being traced, and for real decides by values, calls what the graph does not.
    Code that means to deceive has other ways: this follows honest code, and judges none.
    """
    traced = trace(module, is_leaf, enter)
    seen: dict[nn.Module, set[tuple[Shape, Shape]]] = {}
    like = next((t for t in [*module.parameters(), *module.buffers()] if t.is_floating_point()), torch.zeros(()))
    random = torch.Generator().manual_seed(0)
    graph: Graph | None = None
    weights = _Weights(module)
    with torch.inference_mode(False), torch.no_grad(), batch_means(module):  # versions are counted outside of it only
        for layout in sorted(layouts, reverse=True):  # several samples first
            memory = torch.randn(layout.extent, generator=random) * 100 / layout.shape[0] ** 4  # large and small
            inputs = [layout.within(memory.to(like)) for _ in range(3)]  # which a module may write to
            run = _run_beside(module, traced, inputs, graph, weights)
            graph = run.taken()
            for made, found in run.shapes.items():
                seen.setdefault(made, set()).add(found)
    assert graph is not None
    return graph, seen


def _run_beside(
    module: nn.Module, traced: fx.GraphModule, inputs: Sequence[Tensor], known: Graph | None, weights: "_Weights"
) -> "_Run":
    """The graph run on a batch of which there are three copies; it must compute what the module does, twice."""
    batch = len(inputs[0])
    parts = [*{traced.get_submodule(str(node.target)) for node in traced.graph.nodes if node.op == "call_module"}]
    run, real = _Run(traced, batch, known, weights, Watch(inputs[0])), Watch(inputs[1])
    try:
        with run.watch.leaving_alone(parts):
            answers = [run.run(inputs[0])]
        with real.leaving_alone(parts), real:
            answers += [module(inputs[1])]
        answers += [module(inputs[2])]
    except UserError:
        raise
    except Exception as error:  # of a user's code
        raise UserError(f"it fails on a batch of {batch} ({brief(error)})") from error
    if not all(_equal(answer, answers[0]) for answer in answers[1:]):
        raise UserError("it does not compute twice what torch.fx has seen it compute once")
    weights.require_unchanged(module)
    if call := real.differs_from(run.watch):
        raise UserError(f"it does not do what torch.fx has seen it do (it differs in {call})")
    return run


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    tolerance = 64 * torch.finfo(a.dtype).eps if a.is_floating_point() else 0.0
    size = float(b.abs().max()) if b.numel() else 0.0
    return math.isfinite(size) and torch.allclose(a, b, rtol=tolerance, atol=tolerance * size)


class _Weights:
    """A module's weights as rules read them: whoever computes with others, and puts these back, has no bound."""

    def __init__(self, module: nn.Module) -> None:
        self.known = {t: t.detach().clone() for t in _numbers(module)}

    def require_unchanged(self, part: nn.Module) -> None:
        """Refuse a part whose weights are others by now; versions would not tell, since `.data` has its own."""
        if not all(t not in self.known or torch.equal(t, self.known[t]) for t in _numbers(part)):
            raise UserError(f"it changes the weights or buffers of {type(part).__name__} while it computes: no bound")


def _numbers(module: nn.Module) -> list[Tensor]:
    return [t for t in [*module.parameters(), *module.buffers()] if t.is_floating_point()]


def _version(held: Any) -> Any:
    """How often a tensor, or each part of one, was written to."""
    return tuple(map(_version, held)) if isinstance(held, tuple) else getattr(held, "_version", None)


class _Run(fx.Interpreter):
    """Runs a graph, takes down its steps and refuses those that mix samples, broadcast or read what was overwritten."""

    def __init__(
        self, traced: fx.GraphModule, batch: int, known: Graph | None, weights: _Weights, watch: Watch
    ) -> None:
        super().__init__(traced)
        self.extra_traceback = False  # errors are told in a line
        self.batch, self.weights, self.watch = batch, weights, watch
        self.known = {} if known is None else {step.node: step for step in known.steps}
        self.kinds: dict[fx.Node, str] = {}
        self.versions: dict[fx.Node, Any] = {}
        self.counts: dict[fx.Node, bool] = {}  # sizes that depend on the number of samples: whether they begin with it
        self.steps: list[Step] = []
        self.shapes: dict[nn.Module, tuple[Shape, Shape]] = {}

    def taken(self) -> Graph:
        """The steps that were taken down."""
        nodes = list(self.graph.nodes)
        (end,) = nodes[-1].args
        if not isinstance(end, fx.Node) or self.kinds[end] != "value":
            raise UserError("its output is no single tensor that depends on its input")
        return Graph(nodes[0], tuple(self.steps), end)

    def run_node(self, n: fx.Node) -> Any:
        """One operation."""
        for node in n.all_input_nodes:
            if _version(self.env[node]) != self.versions[node]:
                refuse(n, f"reads {node.name}, which was overwritten in place since: no bound")
        inputs = {node: self.env[node] for node in n.all_input_nodes}
        kept = {node: tuple(held.shape) for node, held in inputs.items() if isinstance(held, Tensor)}
        self.kinds[n] = kind = kind_of(n, self.kinds)
        if kind == "value" and n.op not in ("placeholder", "output"):
            # values and sizes stay nodes, constants are what they are
            constants = {node: held for node, held in inputs.items() if self.kinds[node] == "constant"}
            args, kwargs = fx.map_arg((n.args, n.kwargs), lambda node: constants.get(node, node))
            step = self.known.get(n) or self._step(n, args, kwargs)
            self.steps.append(step)
        if n.op == "call_module":
            self.weights.require_unchanged(self.fetch_attr(str(n.target)))
        if kind == "size":
            self._note_count(n, inputs)
        with self.watch:
            result = super().run_node(n)
        self.versions[n] = _version(result)
        if kind == "value" and n.op not in ("placeholder", "output"):
            self._check(step, [kept.get(node) for node in step.sources], result)
        return result

    def _step(self, n: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
        sizes: Any = n.args[1] if len(n.args) == 2 and isinstance(n.args[1], list | tuple) else n.args[1:]
        # a reshape may begin with the number of samples itself; nothing else may depend on it
        begins = n.target in RESHAPES and bool(sizes) and self.counts.get(sizes[0], False)
        counted = self.counts.keys() & nodes_in((sizes[1:] if begins else sizes, n.kwargs))
        if counted or (n.target not in REARRANGEMENTS and any(self.kinds[k] == "size" for k in n.all_input_nodes)):
            refuse(n, "counts with the size of its input: no bound")
        if n.op == "call_module":
            return applied(n, self.fetch_attr(str(n.target)))
        return step_of(n, args, kwargs)

    def _note_count(self, n: fx.Node, inputs: Mapping[fx.Node, Any]) -> None:
        """Whether a size depends on the number of samples, and whether it is this number or begins with it."""
        source: Any = n.args[0] if n.args else None
        held: Any = inputs.get(source) if isinstance(source, fx.Node) else None
        index: Any = n.args[1] if len(n.args) > 1 else None
        if isinstance(held, Tensor):  # its shape or a part of it, its dimensions, or how many numbers it holds
            at: tuple[Any, ...] = () if n.target is getattr else (*n.args[1:], *n.kwargs.values())
            name = index if n.target is getattr else n.target
            if name in ("shape", "size", "numel") and not (at and isinstance(at[0], int) and at[0] % held.ndim):
                self.counts[n] = name != "numel"
        elif self.counts.keys() & inputs:
            picks = n.target is operator.getitem and isinstance(held, tuple) and isinstance(index, int)
            is_whole = picks and self.counts.get(source, False)
            if not (is_whole and index % len(held)):
                self.counts[n] = is_whole

    def _check(self, step: Step, before: list[Shape | None], result: Any) -> None:
        """Every sample keeps its place, and nothing is copied by broadcasting."""
        n = step.node
        for part in result if isinstance(result, tuple) and n.target in SPLITS else (result,):
            if not isinstance(part, Tensor) or part.shape[:1] != (self.batch,) or not part.is_floating_point():
                refuse(n, f"makes {_told(part)} of {self.batch} samples, which it may mix: no bound")
        if step.kind is Kind.APPLY and isinstance(result, Tensor) and before[0] is not None:
            assert step.module is not None
            self.shapes[step.module] = before[0][1:], tuple(result.shape[1:])
        if (step.kind is Kind.SUM or isinstance(step.module, Elementwise)) and {*before} != {tuple(result.shape)}:
            refuse(n, f"broadcasts {before} to {tuple(result.shape)}: no bound")
        if step.axes is not None:
            rank = max(len(shape) for shape in before if shape is not None) + (1 if step.adds_axis else 0)
            if any(axis % rank == 0 for axis in step.axes):
                refuse(n, "works along the samples: no bound")


def kind_of(n: fx.Node, kinds: Mapping[fx.Node, str]) -> str:
    """What an operation makes of the kinds of its inputs: a value depends on the input, a size on its shape only."""
    if n.op == "placeholder":
        return "value"
    found = {kinds[node] for node in n.all_input_nodes}
    looks = (n.op == "call_method" and n.target in SIZES) or (n.target is getattr and n.args[1] in SIZES)
    if "value" in found and not looks:
        return "value"
    return "size" if found & {"value", "size"} else "constant"


def _told(part: Any) -> str:
    is_tensor = isinstance(part, Tensor)
    return f"a tensor of {part.dtype} and shape {tuple(part.shape)}" if is_tensor else f"a {type(part).__name__}"


def applied(n: fx.Node, module: nn.Module) -> Step:
    """A module as it is called: with one value and nothing else."""
    if len(n.args) != 1 or n.kwargs or not isinstance(n.args[0], fx.Node):
        refuse(n, f"calls {type(module).__name__} with more than one value: no rule")
    return Step(n, Kind.APPLY, (n.args[0],), module)


def step_of(n: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
    """What a function or a method does to a value."""
    make = OPERATIONS.get(n.target)
    if make is None:
        refuse(n, "has no Lipschitz rule")
    try:
        return make(n, *args, **kwargs)
    except UserError:
        raise
    except (TypeError, ValueError, LookupError, AssertionError):
        refuse(n, f"has no Lipschitz rule for such arguments {tuple(map(str, n.args[1:]))}")
