"""What rules check of the shapes that a dry run has seen: nothing may broadcast, and nothing may mix samples."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from lipscale.bounds.walk import Rule, Walk
from lipscale.errors import UserError


def require_equal_shapes(module: nn.Module, bound: Walk) -> None:
    """Refuse a module whose outputs have another shape than its inputs: it copies values, or adds copies to others."""
    if not bound.keeps_shape(module):
        raise UserError(f"{type(module).__name__} broadcasts its inputs, {_listed(module, bound)}: no bound")


def require_samples_apart(module: nn.Module, bound: Walk, dims: Iterable[int]) -> None:
    """Refuse a module that works along the batch, by a dimension of 0 or a negative one that reaches it."""
    ranks = {1 + len(shape) for shape in bound.shapes(module)}
    listed = list(dims)
    if not listed or any(dim == 0 or any(dim + rank <= 0 for rank in ranks) for dim in listed):
        raise UserError(f"{type(module).__name__} works along dimensions {listed}, which mixes samples: no bound")


def on_images(rule: Callable[[Any, Walk], float]) -> Rule:
    """A rule that holds for images (C, H, W) only: with fewer dimensions torch takes samples for channels."""

    def bounded(module: nn.Module, bound: Walk) -> float:
        if any(len(shape) != 3 for shape in bound.shapes(module)):
            raise UserError(f"{type(module).__name__} takes images (C, H, W), {_listed(module, bound)}: no bound")
        return rule(module, bound)

    return bounded


def _listed(module: nn.Module, bound: Walk) -> str:
    return f"got inputs of shape {', '.join(map(str, sorted(bound.shapes(module))))}"
