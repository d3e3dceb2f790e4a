"""The figures that we promise, measured by the commands that people type."""

import json

import numpy as np
import pytest
import sklearn.datasets
import torch

from conftest import lipscale, real_folder, training_of
from lipscale import data, models
from lipscale.bounds import lipschitz_bound
from lipscale.bounds.constant import get_lipschitz
from lipscale.data import prepare
from lipscale.experiments import RECIPES
from lipscale.settings import replace
from lipscale.training import algorithm_1
from makers import write_csv


@pytest.mark.slow
def test_the_embedded_default(tmp_path):
    lipscale("train", "--out", tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["accuracy"] >= 0.97
    assert abs(metrics["esce"]) <= 0.025
    assert metrics["certified_accuracy"]["0.25"] >= 0.50


@pytest.mark.long
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
    training = training_of(
        net,
        few.take(torch.arange(12)),
        few.take(torch.arange(12, 18)),
        settings,
        augmentation=dataset.augmentation,
    )
    before = {k: v.detach().clone() for k, v in net.named_parameters() if v.requires_grad}
    algorithm_1(training)
    assert [e.phase for e in training.history] == [1, 2]
    moved = [k for k, v in net.named_parameters() if v.requires_grad and not torch.equal(before[k], v)]
    assert len(moved) == len(before)
    assert lipschitz_bound(net) == pytest.approx(get_lipschitz(net), rel=1e-4)


def _covertype_like():
    """Like covertype: numbers on wild scales, two categories, seven classes from 49 % down to 2 %."""
    rng = np.random.default_rng(0)
    labels = rng.choice(7, 6000, p=[0.36, 0.49, 0.05, 0.02, 0.02, 0.03, 0.03])
    numbers = rng.normal(0, 1, (7, 8))[labels] + rng.normal(0, 1.2, (6000, 8))
    numbers = numbers * rng.uniform(1, 300, 8) + rng.uniform(-1000, 3000, 8)
    areas = (labels + rng.integers(0, 3, 6000)) % 4
    soils = rng.integers(0, 40, 6000)
    rows = [
        [*map(str, x.round(2)), f"area {a}", f"soil {s}", f"type {y}"]
        for x, a, s, y in zip(numbers, areas, soils, labels, strict=True)
    ]
    return [*(f"n{i}" for i in range(8)), "area", "soil", "y"], rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["breast_cancer", "wine", "covertype_like"])
def test_a_table_gives_a_calibrated_model_with_no_further_flag(tmp_path, name):
    if name == "covertype_like":
        header, rows = _covertype_like()
    else:
        bunch = getattr(sklearn.datasets, f"load_{name}")()
        header = [*bunch.feature_names, "y"]
        rows = [[*x, bunch.target_names[y]] for x, y in zip(bunch.data, bunch.target, strict=True)]
    path = write_csv(tmp_path / "x.csv", rows, header=header)
    lipscale("train", "--data", path, "--label", "y", "--out", tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["as_calibrated_as_its_set"] is True
    assert metrics["calibrated"] is not False  # so few test samples may leave it undecided
    assert metrics["accuracy"] >= {"breast_cancer": 0.93, "wine": 0.93, "covertype_like": 0.8}[name]
