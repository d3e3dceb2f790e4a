"""sll: the SDP-based Lipschitz layer (Araujo et al., 2023)."""

import torch
from torch import Tensor, nn

from lipscale.layers.families.formula import Formula, as_kernel, random_taps
from lipscale.layers.families.potentials import potential_family
from lipscale.layers.norms import absolute_gram


class BalancedKernel(Formula):
    """M = diag(t)^1/2 W with 1 / t_i = sum_j |W W^T|_ij q_j / q_i and learned q > 0.

    The layer x - 2 W^T diag(t) relu(W x + b) is x - 2 M^T relu(M x + b'), because relu commutes with positive factors.
    The published code adds an epsilon to q_i in the quotient, not to the sum: then ||M|| may exceed 1.
    """

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.taps = random_taps(channels, channels, kernel_size)
        self.log_q = nn.Parameter(torch.zeros(channels))

    def weight_of(self, taps: Tensor, log_q: Tensor) -> Tensor:  # type: ignore[override]
        """M."""
        kernel = as_kernel(taps)
        ratios = (log_q - log_q[:, None]).exp()  # q_j / q_i
        sums = (absolute_gram(kernel) * ratios).sum(1)
        return kernel * sums.clamp_min(torch.finfo(sums.dtype).tiny).rsqrt()[:, None, None, None]


SLL = potential_family(
    "sll",
    "Araujo et al., 2023",
    "the autocorrelation of the kernel, (2 k - 1)^2 c^3 products; two convolutions instead of one",
    BalancedKernel,
)
