"""Norm bounds never lie below the dense norm, and are tight where they say so."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conftest import dense
from lipscale.layers import OrthoConv2d
from lipscale.layers.norms import conv_norm, matrix_norm


def test_the_matrix_norm_is_the_largest_singular_value():
    matrix = torch.randn(20, 30)
    exact = np.linalg.norm(matrix.double().numpy(), 2)
    assert exact <= matrix_norm(matrix) <= exact * (1 + 1e-11)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [4, 5, 7])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_the_convolution_bound_is_never_below_the_dense_norm(stride, kernel, size, padding):
    if kernel > size + 2 * padding:
        pytest.skip("no output")
    weight = torch.randn(3, 2, kernel, kernel, dtype=torch.float64)
    operator = dense(lambda x: F.conv2d(x, weight, stride=stride, padding=padding), (2, size, size))
    assert conv_norm(weight, stride=(stride, stride)) >= torch.linalg.matrix_norm(operator, ord=2)


@pytest.mark.parametrize("shape", [(3, 16, 3, 1), (16, 4, 3, 1), (8, 16, 3, 2), (16, 8, 1, 1)])
def test_the_bound_of_an_orthogonal_kernel_is_one(shape):
    c_in, c_out, kernel, stride = shape
    layer = OrthoConv2d(c_in, c_out, kernel, stride=stride).eval()
    assert conv_norm(layer.weight, stride=(stride, stride)) * (1 + 1e-5) >= 1
    assert conv_norm(layer.weight, stride=(stride, stride)) <= 1 + 1e-5
    assert conv_norm(layer.double().weight, stride=(stride, stride)) <= 1 + 1e-10


@pytest.mark.parametrize("factor", [1e-300, 1e-170, 1e-40, 1e150])
@pytest.mark.parametrize("size", [None, (6, 6)])
def test_the_bound_of_tiny_and_huge_kernels_is_that_of_ordinary_ones(factor, size):
    weight = torch.randn(4, 3, 3, 3, dtype=torch.float64)
    ordinary = conv_norm(weight, size=size, padding=((1, 1), (1, 1)))
    assert conv_norm(weight * factor, size=size, padding=((1, 1), (1, 1))) == pytest.approx(ordinary * factor, rel=1e-9)
