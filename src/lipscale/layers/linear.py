"""The scaled orthogonal linear layer, on deel-torchlip's SpectralLinear."""

import torch.nn.functional as F
from deel.torchlip import SpectralLinear
from torch import Tensor

from lipscale.layers.orthogonal import polar_factor
from lipscale.layers.scale import ScaledLayer


class OrthoLinear(ScaledLayer):
    """y = sigma * W x + gain * b with all singular values of W equal to 1 (the paper's SpectralLinear)."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__(out_features, bias=bias)
        self.in_features, self.out_features = in_features, out_features
        self.peer = SpectralLinear(in_features, out_features, bias=False)

    def unit_weight(self) -> Tensor:
        """Torchlip's weight: one power iteration and a truncated Bjorck iteration."""
        return self.peer.weight

    def exact_unit_weight(self) -> Tensor:
        """The polar factor of the raw weight."""
        return polar_factor(self.peer.parametrizations.weight.original)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return F.linear(x, self.weight, self.scaled_bias())

    def extra_repr(self) -> str:
        """The shape, for print(net)."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
