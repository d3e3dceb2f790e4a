"""The scaled orthogonal linear layer, and where its matrix comes from."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from lipscale.layers.orthogonal import exact_orthonormal, orthonormal, random_frame
from lipscale.layers.scale import ScaledLayer, UnitWeight

MATRIX_SIZE = 1.0  # the peer's, so that its learning rates carry over


class FrameMatrix(UnitWeight):
    """A matrix whose rows or columns, whichever are fewer, are orthonormal: the Gram-Schmidt frame of a raw one."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.matrix = random_frame(out_features, in_features, size=MATRIX_SIZE)

    def unit(self, *, reduced: bool = False) -> Tensor:
        """The frame in the parameter's own precision."""
        return orthonormal(self.matrix, reduced=reduced)

    def exact_unit(self) -> Tensor:
        """The frame in float64."""
        return exact_orthonormal(self.matrix)


class OrthoLinear(ScaledLayer):
    """y = sigma * W x + scale * b with all singular values of W equal to 1 (the paper's SpectralLinear).

    `source` makes the matrix: ours, or the reference (`lipscale.layers.reference.PeerMatrix`).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        source: Callable[[int, int], UnitWeight] = FrameMatrix,
    ) -> None:
        super().__init__(source(in_features, out_features), out_features, bias=bias)
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return F.linear(x, self.weight, self.scaled_bias())

    def extra_repr(self) -> str:
        """The shape, for print(net)."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
