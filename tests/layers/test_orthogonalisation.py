"""How raw weights become orthonormal ones: the limit, the gradients, and the cache that must not be stale."""

import copy
import math
from unittest import mock

import pytest
import torch

from lipscale.layers import (
    BatchCentering,
    ConvexResidual,
    GroupSort2,
    HalfAbs,
    OrthoConv2d,
    OrthoLinear,
    polar_factor,
)
from lipscale.layers.kernel import HEIGHT, WIDTH, compose
from lipscale.layers.orthogonal import exact_orthonormal, orthonormal


class TestGramSchmidt:
    @pytest.mark.parametrize("shape", [(3, 7, 4), (5, 5), (4, 9), (6, 1), (1, 1)])
    def test_its_gradient_is_exact_wherever_the_raw_matrix_is(self, shape):
        raw = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(orthonormal, (raw,))

    def test_it_is_the_q_of_qr(self):
        raw = torch.randn(3, 9, 5, dtype=torch.float64)
        q = orthonormal(raw)
        torch.testing.assert_close(q, exact_orthonormal(raw), atol=1e-9, rtol=0)
        r = q.mT @ raw
        torch.testing.assert_close(r.tril(-1), torch.zeros_like(r), atol=1e-9, rtol=0)
        assert (r.diagonal(dim1=-2, dim2=-1) > 0).all()

    def test_scale_and_shape_of_the_raw_matrix_leave_the_projector_alone(self):
        raw, mix = torch.randn(8, 4), torch.randn(4, 4) + 3 * torch.eye(4)
        for other in (1e-6 * raw, 1e6 * raw, raw @ mix):  # weight decay, growth, any other basis
            a, b = orthonormal(raw), orthonormal(other)
            torch.testing.assert_close(a @ a.mT, b @ b.mT, atol=1e-4, rtol=0)

    @pytest.mark.parametrize("condition", [1e1, 1e3, 1e5, 1e7])
    def test_ill_conditioned_frames_stay_sound_and_finite(self, condition):
        left, right = exact_orthonormal(torch.randn(32, 16)), exact_orthonormal(torch.randn(16, 16))
        raw = (left * torch.logspace(0, -math.log10(condition), 16) @ right).float()
        values = torch.linalg.svdvals(orthonormal(raw).double())
        assert values.max() < 1 + 1e-6 * condition
        exact = exact_orthonormal(raw)
        torch.testing.assert_close(exact.mT @ exact, torch.eye(16, dtype=torch.float64), atol=1e-12, rtol=0)

    def test_a_zero_or_rank_deficient_matrix_gives_no_nan(self):
        for raw in (torch.zeros(6, 4), torch.randn(6, 2) @ torch.randn(2, 4), torch.full((6, 4), 1e-25)):
            raw.requires_grad_()
            q = orthonormal(raw)
            q.square().sum().backward()
            assert q.isfinite().all()
            assert raw.grad.isfinite().all()
            exact = exact_orthonormal(raw)
            torch.testing.assert_close(exact.mT @ exact, torch.eye(4, dtype=torch.float64), atol=1e-12, rtol=0)


def test_handwritten_gradients_equal_numerical_ones_and_plain_operations():
    number = lambda *shape: torch.randn(shape, dtype=torch.float64, requires_grad=True)  # noqa: E731
    block_of_one = ConvexResidual(torch.nn.Identity()).double()
    block_of_one.sigma.fill_(1.7)
    centering = BatchCentering(3).double().train()
    cases = {
        "kernel": (
            lambda kernel, frames: compose(kernel, frames, (HEIGHT, WIDTH)),
            (number(4, 2, 1, 3), number(2, 4, 2)),
        ),
        "sort": (GroupSort2(), (number(2, 4, 3),)),
        "fold": (HalfAbs(), (number(2, 4, 3),)),
        "centering": (
            lambda x, b: torch.func.functional_call(centering, {"bias": b}, (x,)),
            (number(4, 3, 2), number(3)),
        ),
        "blend": (lambda x, b: torch.func.functional_call(block_of_one, {"blend": b}, (x,)), (number(2, 3), number())),
    }
    for name, (function, inputs) in cases.items():
        assert torch.autograd.gradcheck(function, inputs), name
        with mock.patch("torch.compiler.is_compiling", return_value=True):
            plain = function(*inputs)
        torch.testing.assert_close(function(*inputs), plain, msg=name)


def test_training_weights_have_gradients_and_evaluation_weights_let_inputs_have_them():
    for layer, x in ((OrthoConv2d(2, 4, 3), torch.randn(2, 2, 5, 5)), (OrthoLinear(4, 6), torch.randn(2, 4))):
        layer.train()(x).square().sum().backward()
        assert all(p.grad is not None for p in layer.parameters() if p.requires_grad)
        x.requires_grad_()
        layer.eval()(x).sum().backward()
        assert x.grad is not None


def test_polar_factor_of_a_rank_deficient_matrix_is_orthonormal():
    matrix = torch.randn(6, 2) @ torch.randn(2, 4)
    q = polar_factor(matrix)
    torch.testing.assert_close(q.T @ q, torch.eye(4, dtype=torch.float64), atol=1e-12, rtol=0)


class TestTheWeightCache:
    @pytest.fixture
    def layer(self):
        return OrthoConv2d(2, 4, 3).eval()

    def test_two_evaluations_are_bit_equal_and_share_the_weight(self, layer):
        x = torch.randn(1, 2, 6, 6)
        assert torch.equal(layer(x), layer(x))
        assert layer.weight is layer.weight

    def test_every_change_drops_it(self, layer):
        raw = next(p for p in layer.parameters() if p.requires_grad and p.ndim > 1)
        changes = {
            "parameter": lambda: raw.detach().add_(torch.randn_like(raw)),
            "scale": lambda: layer.sigma.fill_(3.0),
            "state": lambda: layer.load_state_dict(OrthoConv2d(2, 4, 3).state_dict()),
            "dtype": lambda: layer.double(),
            "data": lambda: (raw.data.add_(torch.randn_like(raw)), layer.train().eval()),
        }
        for name, change in changes.items():
            before = layer.weight
            change()
            assert not torch.equal(before.double(), layer.weight.double()), name

    def test_a_copy_has_a_cache_of_its_own(self, layer):
        layer.weight  # noqa: B018 (fills the cache)
        twin = copy.deepcopy(layer)
        twin.sigma.fill_(2.0)
        torch.testing.assert_close(twin.weight, 2 * layer.weight)

    def test_inference_mode_does_not_poison_it(self, layer):
        x = torch.randn(1, 2, 6, 6)
        with torch.inference_mode():
            layer(x)
        x.requires_grad_()
        layer(x).sum().backward()
        assert x.grad is not None

    def test_what_is_loaded_in_inference_mode_counts(self):
        """There tensors have no version that would tell."""
        states = [OrthoConv2d(2, 4, 3).state_dict() for _ in range(2)]
        with torch.inference_mode():
            layer = OrthoConv2d(2, 4, 3).eval()
            weights = []
            for state in states:
                layer.load_state_dict(state)
                weights.append(layer.weight)
                assert layer.weight is weights[-1]
        assert not torch.allclose(*weights, atol=1e-3)
