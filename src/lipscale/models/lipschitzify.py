"""An ordinary network to its constrained twin: the same topology, made of lipscale's layers."""

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from lipscale.bounds import is_plain_sequence, lipschitz_bound, set_lipschitz
from lipscale.bounds.constant import HOMOGENEOUS, scaled_depth
from lipscale.bounds.graph import applied, kind_of, step_of
from lipscale.bounds.operations import REARRANGEMENTS, SUBTRACTIONS, Elementwise, Kind, Step, place, refuse
from lipscale.bounds.tracing import trace
from lipscale.bounds.walk import is_of_a_library, refuse_surprises, rule_of
from lipscale.errors import UserError
from lipscale.layers import (
    AtScale,
    ConvexResidual,
    GroupSort2,
    L2NormPool2d,
    Scale,
    ScaledLayer,
    Standardise,
    batch_means,
    evaluation_mode,
)
from lipscale.layers.projectors import as_pair
from lipscale.models.counterparts import ACTIVATIONS, LAYERS, WHY_NOT, WIDTHS, apart, sign_of

S = TypeVar("S", bound=nn.Sequential)


class Converted(nn.Sequential):
    """A constrained twin; `report` says what became of each part of the network."""

    report: str = ""


def lipschitzify(net: nn.Module, input_shape: Sequence[int] | None = None) -> Converted:
    """Turn an ordinary network into its constrained twin, of the same topology, to be trained afresh.

    torch.fx follows the network. Conv2d and Linear become OrthoConv2d and OrthoLinear, BatchNorm BatchCentering,
    activations GroupSort2 (ReLU where channels are odd), residual additions ConvexResidual, a global average pool
    L2NormPool2d; other pools are brought to norm 1. Whatever else there is, is refused by name. The twin starts from
    weights of its own: what an unconstrained kernel has learned, no orthogonal one can compute.

    Args:
        net: A network of these parts, in torch.nn modules, functions or methods; it is left as it is.
        input_shape: (C, H, W) or (F,) of one input: asked for by pools to more than one pixel, and checked against.

    Returns:
        The twin at L = 1, a torch.nn.Sequential for `lipscale.fit`, `set_lipschitz`, `certify` and `export_plain`. Its
        `report` is a table of what was replaced.

    Example:
        >>> import lipscale, torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))
        >>> twin = lipscale.lipschitzify(net)
        >>> print(twin.report)
        0  Conv2d       OrthoConv2d
        1  BatchNorm2d  BatchCentering
        2  ReLU         GroupSort2
        3  Flatten      Flatten
        4  Linear       OrthoLinear
        L = 1 over 2 scaled layers along the path
    """
    original = copy.deepcopy(net).eval()
    traced = trace(original, _is_leaf, refuse_surprises)
    if input_shape is not None:
        _propagate(traced, original, input_shape)
    maker = _Maker(traced)
    twin = maker.twin()
    like = next(original.parameters(), torch.zeros(()))
    twin.to(device=like.device, dtype=like.dtype)
    set_lipschitz(twin, 1.0)
    twin.report = maker.report(scaled_depth(twin))
    if input_shape is not None:
        _require_same_outputs(traced, twin, like.new_zeros(2, *input_shape))
    return twin


def _is_leaf(module: nn.Module) -> bool:
    return not is_plain_sequence(module) and (is_of_a_library(module) or rule_of(module) is not None)


def _propagate(traced: fx.GraphModule, net: nn.Module, input_shape: Sequence[int]) -> None:
    """Note the shape of every value."""
    like = next(net.parameters(), torch.zeros(()))
    try:
        with torch.no_grad(), batch_means(net):
            ShapeProp(traced).propagate(like.new_zeros(2, *input_shape))
    except RuntimeError as error:
        raise UserError(f"the network does not take inputs of shape {tuple(input_shape)}: {error}") from error


def _shape(node: fx.Node) -> tuple[int, ...] | None:
    """The shape of a value without the batch, where it is known."""
    meta = node.meta.get("tensor_meta")
    return None if meta is None else tuple(meta.shape[1:])


def _require_same_outputs(traced: fx.GraphModule, twin: nn.Module, x: Tensor) -> None:
    expected = next(reversed(traced.graph.nodes)).all_input_nodes[0].meta["tensor_meta"].shape
    with evaluation_mode(twin), batch_means(twin):
        found = twin(x).shape
    if found != expected:
        raise UserError(f"the twin would make {tuple(found)} where the network makes {tuple(expected)}: other pools?")


class _Maker:
    """Makes the twin of every value's last operation, and joins them along the paths of the graph."""

    def __init__(self, traced: fx.GraphModule) -> None:
        self.traced = traced
        self.start, *nodes, output = traced.graph.nodes
        self.kinds: dict[fx.Node, str] = {self.start: "value"}
        self.channels: dict[fx.Node, int | None] = {self.start: None}
        self.parts: dict[fx.Node, list[nn.Module]] = {}  # of values that come from one other
        self.sources: dict[fx.Node, tuple[fx.Node, ...]] = {}
        self.above: dict[fx.Node, fx.Node] = {}  # the last value that everything on the way to this one goes through
        self.depth: dict[fx.Node, int] = {self.start: 0}
        self.taken: set[fx.Node] = set()
        self.converted: set[nn.Module] = set()
        self.rows: list[tuple[str, str, str]] = []
        for node in nodes:
            self.kinds[node] = kind_of(node, self.kinds)
            if self.kinds[node] == "value":
                self._take(node)
        (self.end,) = output.args
        if not isinstance(self.end, fx.Node) or self.kinds[self.end] != "value":
            raise UserError("the network's output is no single tensor that depends on its input")

    def twin(self) -> Converted:
        """The whole."""
        return _filled(Converted(), self._path(self.end, self.start))

    def report(self, depth: int) -> str:
        """What became of each part, a line each."""
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        lines = [f"{a:{widths[0]}}  {b:{widths[1]}}  {c}" for a, b, c in self.rows]
        return "\n".join([*lines, f"L = 1 over {depth} scaled layers along the path"])

    def _take(self, node: fx.Node) -> None:
        if not node.users:
            refuse(node, "makes a value that nobody reads; work in place on another one has no twin")
        step = self._step(node)
        first = step.sources[0]
        self.sources[node], self.channels[node] = step.sources, self.channels[first]
        if step.kind is Kind.APPLY:
            assert step.module is not None
            self.above[node], self.parts[node] = first, self._twins(node, step.module)
            was = "a factor" if isinstance(step.module, Elementwise) else type(step.module).__name__
            was = place(node)[0] if node.target in REARRANGEMENTS else was
            became = " + ".join(type(part).__name__ for part in self.parts[node]) or "nothing"
        elif step.kind is Kind.SUM and node.target not in SUBTRACTIONS:
            self.above[node], was, became = self._meeting(*step.sources), "a sum", "ConvexResidual"
        else:
            refuse(node, "joins values otherwise than by a sum: no twin is known")
        self.depth[node] = self.depth[self.above[node]] + 1
        self.rows.append((": ".join(filter(None, place(node)[::-1])), was, became))

    def _step(self, node: fx.Node) -> Step:
        if node.op == "call_module":
            return applied(node, self.traced.get_submodule(str(node.target)))
        if any(self.kinds[source] == "constant" for source in node.all_input_nodes):
            refuse(
                node,
                "counts with a tensor of its own, which has no twin; to normalise inputs, put "
                "lipscale.layers.Standardise in front",
            )
        return step_of(node, node.args, dict(node.kwargs))

    def _twins(self, node: fx.Node, module: Any) -> list[nn.Module]:
        """What stands in for a module."""
        kind = type(module)
        if next(module.parameters(), None) is not None:
            if module in self.converted:
                refuse(node, f"runs one {kind.__name__} in two places, which need weights and sigmas of their own")
            self.converted.add(module)
        try:
            return self._made(node, module)
        except UserError as error:
            raise UserError(
                f"no twin for {kind.__name__}{f' ({place(node)[0]})' if node.op == 'call_module' else ''}: {error}"
            ) from error

    def _made(self, node: fx.Node, module: Any) -> list[nn.Module]:
        kind, channels = type(module), self.channels[node]
        if node.target in REARRANGEMENTS:
            return self._rearranged(node)
        if kind is Elementwise:
            return sign_of(module)
        if kind in LAYERS:
            self.channels[node] = _width(module)
            return LAYERS[kind](module)
        if kind in ACTIVATIONS:
            return [nn.ReLU() if channels is None or channels % 2 else GroupSort2()]
        if kind is nn.AdaptiveAvgPool2d and as_pair(module.output_size) == (1, 1) and channels is not None:
            return [L2NormPool2d()] if _drops_axes(node) else [L2NormPool2d(), nn.Unflatten(1, (channels, 1, 1))]
        if isinstance(module, AtScale | ConvexResidual):
            self.channels[node] = _width(module)
            return [copy.deepcopy(module).train()]
        if kind in HOMOGENEOUS:
            return [*self._kept(node, module), *([nn.Flatten()] if _drops_axes(node) else [])]
        raise UserError(WHY_NOT.get(kind.__name__, "none is known"))

    def _rearranged(self, node: fx.Node) -> list[nn.Module]:
        """Only flattening has a twin; where no shape is known, by the arguments that people give for it."""
        if place(node)[0] in ("contiguous", "clone"):
            return []
        shape, sizes = _shape(node), node.args[1:]
        usual = len(sizes) == 2 and (sizes[0] == -1 or isinstance(sizes[0], fx.Node)) and isinstance(sizes[1], int)
        if (usual and place(node)[0] in ("view", "reshape")) or (shape is not None and len(shape) == 1):
            self.channels[node] = None
            return [nn.Flatten()]
        raise UserError("it rearranges values, which has no twin but where it flattens them")

    def _kept(self, node: fx.Node, module: Any) -> list[nn.Module]:
        """A part that stays, brought to norm 1 where it has another."""
        kept = copy.deepcopy(module)
        if getattr(kept, "inplace", False):
            kept.inplace = False  # others may read what it would overwrite
        if isinstance(module, nn.Flatten | nn.Unflatten | nn.PixelShuffle | nn.PixelUnshuffle):
            self.channels[node] = None
        if isinstance(module, nn.MaxPool2d):
            kept = apart(kept)
        bound = lipschitz_bound(kept.eval(), _shape(self.sources[node][0]))
        kept.train()
        return [kept] if bound == 1 or isinstance(kept, Standardise) else [kept, Scale(1 / bound)]

    def _meeting(self, a: fx.Node, b: fx.Node) -> fx.Node:
        """The last value that everything on the way to both goes through."""
        while a is not b:
            a, b = (self.above[a], b) if self.depth[a] > self.depth[b] else (a, self.above[b])
        return a

    def _path(self, end: fx.Node, start: fx.Node) -> list[tuple[str, nn.Module]]:
        """The named modules from one value to another, in the order in which they run."""
        found: list[tuple[str, nn.Module]] = []
        node = end
        while node is not start:
            if node in self.taken:
                refuse(node, "feeds sums that do not lie one within the other: no twin is known")
            self.taken.add(node)
            parts = self.parts[node] if node in self.parts else [self._residual(node)]
            _, scope = place(node)
            name = node.name.removeprefix("net_") if node in self.parts else f"{scope.replace('.', '_')}_sum".strip("_")
            found += reversed([(f"{name}_{i}" if i else name, part) for i, part in enumerate(parts)])
            node = self.above[node]
        return found[::-1]

    def _residual(self, node: fx.Node) -> ConvexResidual:
        """The blend of two paths; the one with more scaled layers sets the sigma of the other."""
        paths = [_filled(nn.Sequential(), self._path(source, self.above[node])) for source in self.sources[node]]
        skip, branch = sorted(paths, key=lambda path: sum(isinstance(m, ScaledLayer) for m in path.modules()))
        return ConvexResidual(branch, skip if len(skip) else None)


def _width(layer: nn.Module) -> int | None:
    return next((int(getattr(layer, name)) for name in WIDTHS if hasattr(layer, name)), None)


def _filled(sequence: S, parts: list[tuple[str, nn.Module]]) -> S:
    for name, part in parts:
        while hasattr(sequence, name):
            name += "_"
        sequence.add_module(name, part)
    return sequence


def _drops_axes(node: fx.Node) -> bool:
    """Whether it is a mean over pixels that leaves rows behind."""
    return place(node)[0] == "mean" and not (node.kwargs.get("keepdim") or any(node.args[2:]))
