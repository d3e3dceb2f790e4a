"""Certify a network: its proven bound, and the tighter constants of pairs of classes behind a linear head."""

import math
from typing import cast

import torch
from torch import Tensor, nn

from lipscale.bounds import Walk, is_constrained, is_plain_sequence
from lipscale.certificates.certificate import Certificate
from lipscale.certificates.rounding import rounding_allowance
from lipscale.errors import UserError
from lipscale.layers import OrthoLinear
from lipscale.layers.evaluation import evaluation_mode


@torch.no_grad()
def certify(net: nn.Module, inputs: Tensor, *, even_unconstrained: bool = False) -> Certificate:
    """The certificate of a network, from its weights as they are. Make it once, and use it for all logits.

    Args:
        net: the network, in any mode; it is certified in evaluation, and left in the mode that it came in.
        inputs: (N, ...) with N >= 1, of the shape that is certified. They also serve to measure rounding.
        even_unconstrained: compose a bound also where no layer carries a constant, as in an exported network or one of
            other libraries' layers. By default such a network has the certificate that proves nothing: a product of
            ordinary layers' norms is so large that its radii say nothing.

    Returns:
        The certificate. It holds for inputs of this shape, until the weights change.

    Example:
        >>> import lipscale, torch
        >>> net = lipscale.models.mlp(3, 4, 8).eval()
        >>> inputs = torch.rand(5, 4)
        >>> certificate = lipscale.certify(net, inputs)
        >>> radii = certificate.radius(net(inputs))
        >>> lower, upper = certificate.confidence(net(inputs), epsilon=0.1)
        >>> radii.shape, bool((lower < upper).all())
        (torch.Size([5]), True)
    """
    with evaluation_mode(net):
        if not (even_unconstrained or is_constrained(net)):
            return Certificate.none(net(inputs[:1]).shape[1], device=inputs.device)
        if len(inputs) == 0 or not inputs.isfinite().all():
            raise UserError("a certificate needs finite inputs to measure rounding on")
        if inputs.dtype not in (torch.float32, torch.float64):
            raise UserError(f"certificates need float32 or float64 inputs, got {inputs.dtype}")
        walk = Walk.over(net, inputs.shape[1:])
        bound, classes = walk(net), net(inputs[:1]).shape[1]
        generic = torch.full((classes, classes), math.sqrt(2) * bound, dtype=torch.float64, device=inputs.device)
        return Certificate(bound, _with_head(net, walk, generic), rounding_allowance(net, inputs))


def _with_head(net: nn.Module, walk: Walk, pairwise: Tensor) -> Tensor:
    """The tighter constants of pairs behind a linear head, where the network ends in one."""
    if not isinstance(net, nn.Sequential) or not is_plain_sequence(net) or len(net) == 0:
        return pairwise
    *features, head = net
    if type(head) not in (nn.Linear, OrthoLinear):
        return pairwise
    weight = cast(Tensor, head.weight).detach().double()
    rows = (weight.unsqueeze(1) - weight.unsqueeze(0)).norm(dim=2)  # ||w_k - w_j||
    return torch.minimum(pairwise, rows.to(pairwise.device) * math.prod(map(walk, features)) * (1 + 1e-11))
