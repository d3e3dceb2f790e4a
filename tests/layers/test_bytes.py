"""Bytes are no pixels in [0, 1]: whoever forgets to divide is told, and does not train on numbers up to 255."""

import pytest
import torch

import lipscale
from lipscale import models
from lipscale.errors import UserError


@pytest.mark.parametrize("mean", [(0.5,), None])
def test_a_network_refuses_bytes(mean):
    images = torch.randint(0, 256, (4, 1, 8, 8)).to(torch.uint8)
    net = models.mlp(3, (1, 8, 8), 8, mean=mean)
    with pytest.raises((UserError, RuntimeError), match=r"uint8|dtype"):
        net(images)
    if mean:
        with pytest.raises(UserError, match="divide bytes by 255"):
            net(images)


def test_fit_refuses_bytes_and_scales_those_of_samples():
    images, labels = torch.randint(0, 256, (60, 1, 8, 8)).to(torch.uint8), torch.arange(60) % 3
    with pytest.raises(UserError, match="divide bytes by 255"):
        lipscale.fit(models.mlp(3, (1, 8, 8), 8), (images, labels), epochs=1, progress=False)
    nets = [models.mlp(3, (1, 8, 8), 8) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    for net, inputs in zip(nets, (images, images.float() / 255), strict=True):
        lipscale.fit(net, lipscale.data.Samples(inputs, labels), epochs=1, progress=False)
    assert torch.equal(nets[0](images[:5].float() / 255), nets[1](images[:5].float() / 255))


def test_a_loaded_set_is_ready_for_a_network():
    digits = lipscale.data.load_dataset("digits")
    assert digits.train.inputs.dtype == torch.float32
    assert float(digits.train.inputs.min()) >= 0
    assert float(digits.train.inputs.max()) == 1
