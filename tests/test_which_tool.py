"""The peers of benchmarks/which_tool.py do what their papers say."""

import pytest
import torch
from torch import nn

pytest.importorskip("mapie")
from benchmarks.which_tool import certified, votes

SIGMA = 0.25


def test_smoothing_certifies_a_linear_classifier_up_to_its_true_distance_and_little_less():
    """Noise turns a linear network's margin d into the share Phi(d / sigma): R is d, but for the limit of its share."""
    net = nn.Linear(2, 2, bias=False)
    net.weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    distances = torch.tensor([0.1, 0.3, 0.5])
    inputs = torch.stack([distances, torch.zeros(3)], 1)
    with torch.no_grad():
        chosen, radii = certified(net, inputs, SIGMA, torch.Generator().manual_seed(0))
    assert chosen.tolist() == [0, 0, 0]
    assert (radii <= distances).all()
    assert (radii >= distances - 0.06).all()


def test_smoothing_proves_nothing_where_the_vote_is_even_and_no_more_than_its_draws_can_show():
    net = nn.Linear(2, 2, bias=False)
    net.weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    inputs = torch.tensor([[0.0, 0.0], [100.0, 0.0]])
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        assert votes(net, inputs, 50, SIGMA, generator)[1].tolist() == [50, 0]
        even, sure = certified(net, inputs, SIGMA, generator)[1].tolist()
    assert even == pytest.approx(0, abs=0.02)
    # all of 4,000 draws: p >= 0.001^(1/4000)
    normal = torch.distributions.Normal(0.0, 1.0)
    assert sure == pytest.approx(SIGMA * float(normal.icdf(torch.tensor(0.001 ** (1 / 4000)).double())), rel=1e-6)
