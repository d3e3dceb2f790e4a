"""The loss against its formula."""

import pytest
import torch

from lipscale.losses import offset_cross_entropy


@pytest.mark.parametrize("offset", [0.0, 0.5, 3.0])
def test_the_loss_is_its_formula(offset):
    z = torch.randn(6, 4, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    y = torch.eye(4, dtype=torch.float64)[labels]
    p = torch.softmax(z - offset * y, 1)
    expected = -(y * p.log()).sum(1).mean()
    torch.testing.assert_close(offset_cross_entropy(z, labels, offset=offset), expected)


def test_an_offset_is_a_demand_for_margin():
    z, y = torch.tensor([[3.0, 0.0]]), torch.tensor([0])
    losses = [float(offset_cross_entropy(z, y, offset=xi)) for xi in (0.0, 1.0, 3.0)]
    assert losses[0] < losses[1] < losses[2]
    assert losses[2] == pytest.approx(torch.log(torch.tensor(2.0)).item())  # the margin is used up: a coin toss
