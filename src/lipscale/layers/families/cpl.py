"""cpl: the convex potential layer (Meunier et al., 2022)."""

from lipscale.layers.families.potentials import potential_family
from lipscale.layers.families.spectral import Normalised
from lipscale.layers.scale import UnitWeight


def normalised(channels: int, kernel_size: int) -> UnitWeight:
    """M = W / ||W||; in evaluation with the proven norm, where the published power iteration is one from below."""
    return Normalised(channels, channels, kernel_size, 1)


CPL = potential_family(
    "cpl", "Meunier et al., 2022", "one power iteration on 8 x 8 pixels; two convolutions instead of one", normalised
)
