"""The figures that we promise, measured by the commands that people type."""

import json

import pytest
import torch

from conftest import lipscale, real_folder
from lipscale import data, models
from lipscale.bounds import lipschitz_bound
from lipscale.config import replace
from lipscale.data import prepare
from lipscale.experiments import RECIPES
from lipscale.lipschitz import get_lipschitz
from lipscale.training import ListTraining


@pytest.mark.slow
def test_the_embedded_default(tmp_path):
    lipscale("train", "--out", tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["accuracy"] >= 0.97
    assert abs(metrics["esce"]) <= 0.025
    assert metrics["certified_accuracy"]["0.25"] >= 0.50


@pytest.mark.slow
def test_fashion_mnist_at_5000_images(tmp_path):
    folder = real_folder("fashion-mnist")
    flags = ("--data", "fashion-mnist", "--data-dir", folder, "--limit", "5000", "--model", "mlp")
    lipscale("train", *flags, "--epochs", "40", "--phase2-epochs", "0", "--out", tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["accuracy"] >= 0.84
    assert metrics["ece"] <= 0.025
    assert metrics["certified_accuracy"]["0.1412"] >= 0.75


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_papers_resnet18_takes_real_steps_of_both_phases(name):
    dataset, preprocessing = prepare(data.load_dataset(name, real_folder(name)))
    settings = replace(RECIPES[f"list-{name}"](), epochs=1, phase2_epochs=1, batch_size=6, centering_batches=1)
    net = models.resnet18(len(dataset.classes), 3, settings.width, mean=preprocessing.mean)
    few = dataset.train.take(torch.arange(18))
    history = []
    training = ListTraining(
        net,
        few.take(torch.arange(12)),
        few.take(torch.arange(12, 18)),
        settings,
        augmentation=dataset.augmentation,
        on_epoch=history.append,
    )
    before = {k: v.detach().clone() for k, v in net.named_parameters() if v.requires_grad}
    training.run()
    assert [e.phase for e in history] == [1, 2]
    moved = [k for k, v in net.named_parameters() if v.requires_grad and not torch.equal(before[k], v)]
    assert len(moved) == len(before)
    assert lipschitz_bound(net) == pytest.approx(get_lipschitz(net), rel=1e-4)
