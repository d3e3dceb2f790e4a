"""Orthogonal to float precision: the polar factor."""

import torch
from torch import Tensor


def polar_factor(matrices: Tensor) -> Tensor:
    """The nearest matrix with orthonormal rows or columns, U V^T of the singular value decomposition.

    It is the limit of the Bjorck iteration that the peers truncate; here it is computed in float64, and rank
    deficiency does no harm.
    """
    u, _, vh = torch.linalg.svd(matrices.detach().double(), full_matrices=False)  # (..., m, n)
    return u @ vh
