"""What suits a table: batches, width, and whether a hidden layer pays."""

import csv

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import lipscale
from lipscale.data import Samples
from lipscale.runs.tables import table_batch, table_depth, table_width
from lipscale.settings import Settings


def test_an_epoch_has_some_two_dozen_batches_of_a_useful_size():
    assert [table_batch(rows) for rows in (1, 20, 142, 455, 12_000, 24_000, 10**6)] == [1, 20, 32, 32, 512, 1024, 4096]


def test_the_first_layer_loses_no_feature_up_to_a_limit():
    assert [table_width(features) for features in (1, 30, 64, 65, 200, 5000)] == [64, 64, 64, 128, 256, 256]


def clouds(kind, rows=300):
    """Two features: a line between the classes, or the four quadrants, which no line can tell."""
    inputs = torch.randn(rows, 2, generator=torch.Generator().manual_seed(0))
    labels = inputs.sum(1) > 0 if kind == "line" else inputs.prod(1) > 0
    return Samples(inputs, labels.long())


def test_few_rows_get_hidden_layers_only_where_trees_find_what_a_line_misses():
    assert table_depth(clouds("line"), 2) == 0
    assert table_depth(clouds("quadrants"), 2) == 2
    assert table_depth(clouds("line", 6000), 2) == 2  # so many rows can afford them
    wide = Samples(torch.randn(20, 20, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2)
    assert table_depth(wide, 2) == 0  # a line can tell any labels apart


def test_a_class_of_one_row_does_not_stop_the_choice():
    rare = Samples(torch.randn(20, 2), torch.tensor([1] + [0] * 19))
    assert table_depth(rare, 2) == 0


@pytest.mark.parametrize(("kind", "depth"), [("line", 0), ("quadrants", 2)])
def test_a_small_table_is_learned_by_the_network_that_suits_it(tmp_path, kind, depth):
    samples = clouds(kind, 450)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        rows = [[*map(float, row), int(label)] for row, label in zip(samples.inputs, samples.labels, strict=True)]
        csv.writer(file).writerows([["a", "b", "y"], *rows])
    run = lipscale.train(
        Settings(data=str(tmp_path / "t.csv"), label="y", device="cpu", out=tmp_path / "r"), progress=False
    )
    settings = run.settings
    assert (settings.depth, settings.width, settings.batch_size, settings.cross_fit) == (depth, 64, 32, True)
    assert run.metrics.accuracy > 0.9
    assert run.metrics.lipschitz_bound == pytest.approx(run.metrics.lipschitz_constant, rel=1e-4)


def test_a_linear_network_is_logistic_regression_whose_weights_have_a_given_length():
    """The direction that training finds at ||w|| = sqrt(2) L is that of logistic regression with weights as long."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(400, 3))
    labels = (rng.random(400) < 1 / (1 + np.exp(-inputs @ [1.0, -0.5, 0.2]))).astype(int)
    found = LogisticRegression(C=1e-2).fit(inputs, labels)
    length = float(np.linalg.norm(found.coef_))
    torch.manual_seed(0)
    net = lipscale.models.mlp(2, 3, depth=0)
    data = (torch.tensor(inputs).float(), torch.tensor(labels))
    lipscale.fit(net, data, method="fixed", lipschitz=length / 2**0.5, epochs=60, batch_size=100, progress=False)
    weight = net.head.weight[1] - net.head.weight[0]
    assert float(weight.norm()) == pytest.approx(length, rel=1e-5)
    cosine = float(weight.double() @ torch.tensor(found.coef_[0])) / length**2
    assert cosine > 0.999
