"""The sound Lipschitz bound: composed over a network, in float64, from the weights as they are."""

from lipscale.bounds import own, peers, plain
from lipscale.bounds.norms import conv_norm, matrix_norm
from lipscale.bounds.walk import Walk, lipschitz_bound, register_rule, require_certifiable

__all__ = [
    "Walk",
    "conv_norm",
    "lipschitz_bound",
    "matrix_norm",
    "own",
    "peers",
    "plain",
    "register_rule",
    "require_certifiable",
]
