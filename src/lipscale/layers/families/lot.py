"""lot: layer-wise orthogonal training (Xu et al., 2022), the polar factor of every symbol."""

from torch import Tensor

from lipscale.layers.families.bjorck import STEPS, bjorck
from lipscale.layers.families.formula import spread_taps
from lipscale.layers.families.frequencies import frequency_family
from lipscale.layers.orthogonal import polar_factor


def iterated(raw: Tensor, outputs: int, inputs: int) -> Tensor:
    """V (V* V)^-1/2 by an iteration."""
    return bjorck(raw)


def exact(raw: Tensor, outputs: int, inputs: int) -> Tensor:
    """V (V* V)^-1/2 by a singular value decomposition, where V may be rank deficient."""
    return polar_factor(raw)


LOT = frequency_family(
    "lot",
    "Xu et al., 2022",
    f"{STEPS} products c x c for each of h (w / 2 + 1) frequencies, two transforms of the image",
    start=spread_taps,
    train=iterated,
    exact=exact,
)
