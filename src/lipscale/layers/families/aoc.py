"""aoc: our own orthogonal convolution, of the family of Boissin et al. (2025); bcop: the same without a stride."""

from functools import partial

from lipscale.layers.conv import ProjectorKernel
from lipscale.layers.families.family import Family, kernel_conv
from lipscale.layers.linear import OrthoLinear

COST = "13 c^3 products, a Cholesky decomposition of each frame"
CONV = partial(kernel_conv, ProjectorKernel)

AOC = Family("aoc", "Boissin et al., 2025", COST, CONV, OrthoLinear, least_channels=2)
BCOP = Family("bcop", "Li et al., 2019", COST, CONV, OrthoLinear, least_channels=2, sees_patches=True)
