"""Training with any family of layers: a stop loses nothing, and what is certified holds against attacks."""

import pytest
import torch
from fit_makers import quick, timeless
from torch.utils.data import TensorDataset

from lipscale import lipschitz_bound, models
from lipscale.certificates import audit
from lipscale.errors import StoppedError
from lipscale.layers.families import FAMILIES

KEEPS_MORE_THAN_WEIGHTS = ("spectral", "cayley")  # where a power iteration stands, the size of a transform
FAMILIES_IN_TURN = [
    pytest.param(name, marks=() if name in KEEPS_MORE_THAN_WEIGHTS else pytest.mark.long) for name in FAMILIES
]


def network(name, width=4):
    torch.manual_seed(0)
    return models.convnet(10, 1, width, parts=models.parts_of(layers=name))


@pytest.mark.parametrize("name", FAMILIES_IN_TURN)
def test_a_stopped_training_ends_with_the_same_bits(name, digits, tmp_path):
    data = TensorDataset(digits.train.inputs[:120], digits.train.labels[:120])
    options = {"batch_size": 24, "precision": "float32"}
    whole = quick(network(name), data, **options)
    asked = iter(range(1, 100))
    with pytest.raises(StoppedError):
        quick(network(name), data, checkpoint=tmp_path / "fit", should_stop=lambda: next(asked) == 7, **options)
    resumed = quick(network(name), data, checkpoint=tmp_path / "fit", **options)
    assert timeless(resumed.history) == timeless(whole.history)
    theirs = whole.net.state_dict()
    for key, tensor in resumed.net.state_dict().items():
        assert torch.equal(tensor, theirs[key]), key


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_two_thousand_attacked_certificates_hold(name, digits):
    data = TensorDataset(digits.train.inputs, digits.train.labels)
    found = quick(network(name, width=8), data, epochs=4, precision="float32")
    noise = torch.rand(900, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    inputs = torch.cat((digits.train.inputs, digits.test.inputs, noise))
    result = audit(found.net, inputs, pairs=5_000, steps=10)
    assert result.attacked >= 2_000
    assert result.violations == 0
    assert result.slope <= result.bound <= 1.001 * found.lipschitz
    assert lipschitz_bound(found.net, (1, 8, 8)) <= 1.001 * found.lipschitz
    print(f"{name}: {result.attacked} attacked, {result.violations} broken, tightness {result.tightness:.3f}")
