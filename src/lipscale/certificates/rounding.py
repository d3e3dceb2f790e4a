"""How far float32 may move a logit."""

import copy

import torch
from torch import Tensor, nn

from lipscale.errors import UserError
from lipscale.models.export import plain_copy

# The rounding allowance: on a few inputs the gap between float32 and float64 logits is measured, and this many
# times the largest one is taken as the most that any logit can be off.
ROUNDING_FACTOR = 4
ROUNDING_SAMPLES = 8


@torch.no_grad()
def rounding_allowance(net: nn.Module, inputs: Tensor) -> float:
    """The most by which rounding may move the difference of two logits at x and at x' together, as measured.

    Four logits take part, and it is measured on the inputs with the largest norms, where rounding is largest.
    """
    sizes = inputs.flatten(1).norm(dim=1)
    few = inputs[sizes.topk(min(ROUNDING_SAMPLES, len(inputs))).indices]
    gap = (net(few) - _in_float64(net)(few.double())).abs().max()
    return 4 * ROUNDING_FACTOR * float(gap)


def _in_float64(net: nn.Module) -> nn.Module:
    """The network in double precision: with the same weights where it can be exported, else its own copy."""
    try:
        return plain_copy(net).eval().double()
    except UserError:
        return copy.deepcopy(net).double()
