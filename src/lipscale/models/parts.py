"""The two kits of parts that every model is built from: constrained, and its unconstrained twin."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from lipscale.layers import BatchCentering, ConvexResidual, GroupSort2, L2NormPool2d, OrthoConv2d, OrthoLinear


@dataclass(frozen=True)
class Parts:
    """What a topology is made of; a model written once against it has a twin for free."""

    conv: Callable[..., nn.Module]
    linear: Callable[..., nn.Module]
    norm: Callable[[int], nn.Module]
    activation: Callable[[], nn.Module]
    pool: Callable[[], nn.Module]
    residual: Callable[..., nn.Module]


class Sum(nn.Module):
    """The ordinary residual, branch(x) + skip(x)."""

    def __init__(self, branch: nn.Module, skip: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.skip = nn.Identity() if skip is None else skip

    def forward(self, x: Tensor) -> Tensor:
        """Add the two paths."""
        return self.branch(x) + self.skip(x)


def _plain_conv(inputs: int, outputs: int, kernel_size: int, *, stride: int = 1, bias: bool = True) -> nn.Module:
    return nn.Conv2d(inputs, outputs, kernel_size, stride, padding=(kernel_size - 1) // 2, bias=bias)


LIPSCHITZ = Parts(OrthoConv2d, OrthoLinear, BatchCentering, GroupSort2, L2NormPool2d, ConvexResidual)
UNCONSTRAINED = Parts(
    conv=_plain_conv,
    linear=nn.Linear,
    norm=nn.BatchNorm2d,
    activation=nn.ReLU,
    pool=lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    residual=Sum,
)
