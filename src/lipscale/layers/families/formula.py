"""Weights by a formula, and what their raw parameters start from."""

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lipscale.layers.scale import UnitWeight

Start = Callable[[int, int, int], nn.Parameter]  # (outputs, inputs, kernel_size) -> raw taps (k, k, rows, columns)


class Formula(UnitWeight):
    """A weight by one formula: in the parameters' own precision in training, in float64 in evaluation."""

    @abstractmethod
    def weight_of(self, *raw: Tensor) -> Tensor:
        """The weight from the parameters, in their order."""

    def unit(self, *, reduced: bool = False) -> Tensor:
        """The formula, differentiable."""
        return self.weight_of(*self.parameters())

    def exact_unit(self) -> Tensor:
        """The formula in float64."""
        return self.weight_of(*(parameter.detach().double() for parameter in self.parameters()))


def as_kernel(taps: Tensor) -> Tensor:
    """(k, k, outputs, inputs) -> (outputs, inputs, k, k).

    Raw parameters keep a matrix for each tap: optimizers that know matrices (Muon) then see the channels.
    """
    return taps.permute(2, 3, 0, 1).contiguous()


def random_taps(outputs: int, inputs: int, kernel_size: int) -> nn.Parameter:
    """Raw taps to start from: Gaussian, their symbols of about norm 1."""
    taps = torch.randn(kernel_size, kernel_size, outputs, inputs)
    return nn.Parameter(taps / (kernel_size * (outputs**0.5 + inputs**0.5)))


def spread_taps(outputs: int, inputs: int, kernel_size: int) -> nn.Parameter:
    """Raw taps to start from: the identity, which where widths differ repeats or adds up channels, at random signs.

    Its matrix has orthonormal rows or columns, whichever are fewer, each input or output in one of them only.
    """
    fewer, more = sorted((outputs, inputs))
    partner = torch.arange(more) % fewer
    matrix = torch.zeros(more, fewer)
    matrix[torch.arange(more), partner] = torch.randint(2, (more,)) * 2.0 - 1.0
    matrix /= matrix.norm(dim=0)
    taps = torch.zeros(kernel_size, kernel_size, outputs, inputs)
    taps[kernel_size // 2, kernel_size // 2] = matrix if outputs >= inputs else matrix.T
    return nn.Parameter(taps)
