"""Set L, read L, and the proven bound: composed over a network, in float64, from the weights as they are."""

from lipscale.bounds import family_rules, lipscale_rules, torch_rules
from lipscale.bounds.constant import get_lipschitz, is_constrained, set_lipschitz
from lipscale.bounds.walk import (
    Walk,
    is_plain_sequence,
    lipschitz_bound,
    register_rule,
    require_certifiable,
    require_faithful,
)
from lipscale.layers.norms import conv_norm, matrix_norm

__all__ = [
    "Walk",
    "conv_norm",
    "family_rules",
    "get_lipschitz",
    "is_constrained",
    "is_plain_sequence",
    "lipscale_rules",
    "lipschitz_bound",
    "matrix_norm",
    "register_rule",
    "require_certifiable",
    "require_faithful",
    "set_lipschitz",
    "torch_rules",
]
