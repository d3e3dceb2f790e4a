"""What do I gain: the rule, the split that all share, the linear model's radii, and the command as a whole."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from conftest import lipscale
from experiment_makers import stamps
from lipscale import data
from lipscale.experiments.choice import choose, difference, log_loss
from lipscale.experiments.compare import SCALED, Answered, Candidate, Comparison
from lipscale.experiments.compare_page import entries_of
from lipscale.experiments.table_models import linear_radii
from lipscale.metrics import measure
from lipscale.settings import Settings


def candidate(name, *, sharpness, certified=None, seeds=1, noise=0.0):
    """Two classes; `sharpness` scales logits that are right in 90 % of 400 cases."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(400) % 2
    right = torch.rand(400, generator=generator) < 0.9
    answers = []
    for seed in range(seeds):
        logits = torch.zeros(400, 2, dtype=torch.float64)
        logits[torch.arange(400), torch.where(right, labels, 1 - labels)] = sharpness
        stream = torch.Generator().manual_seed(seed)
        logits += noise * torch.randn(400, 2, generator=stream, dtype=torch.float64)
        proven = None if certified is None else torch.arange(400) < 400 * certified
        answers.append(Answered(logits, labels, measure(logits, labels), 1.0, proven))
    return Candidate(name, answers)


def test_the_difference_has_the_interval_of_a_paired_test():
    one, other = candidate("a", sharpness=2.2, noise=0.3), candidate("b", sharpness=3.0)
    found = difference(one, other)
    a, b = (c.seeds[0].losses.numpy() for c in (one, other))
    interval = ttest_rel(a, b).confidence_interval()
    assert (found.value - found.half, found.value + found.half) == pytest.approx((interval.low, interval.high))
    wider = difference(one, other, comparisons=4)
    assert wider.half > found.half
    assert log_loss(one) == pytest.approx(float(np.mean(a)))


def test_of_those_that_are_level_the_one_that_proves_most_is_chosen():
    best = candidate("best", sharpness=2.2)
    level = candidate("level", sharpness=2.15, noise=0.02, certified=0.6)
    poor = candidate("poor", sharpness=9.0, certified=0.9)
    chosen, (first, second) = choose([best, level, poor], majority_rate=0.5)
    assert chosen is level
    assert first.startswith("Choose level")
    assert "not clearly above the lowest (best" in first
    assert second.startswith("If you need more proof: poor")


def test_a_sample_more_that_is_proven_decides_nothing():
    best, other = candidate("best", sharpness=2.15, certified=0.6), candidate("other", sharpness=2.2, certified=0.6025)
    assert log_loss(best) < log_loss(other)
    chosen, said = choose([other, best], majority_rate=0.5)
    assert chosen is best
    assert len(said) == 1


def test_a_clearly_lower_loss_wins_and_a_constant_answer_is_named():
    best, poor = candidate("best", sharpness=2.2, seeds=3, noise=0.1), candidate("poor", sharpness=9.0, seeds=3)
    chosen, (first, *rest) = choose([poor, best], majority_rate=0.5)
    assert chosen is best
    assert "clearly the lowest" in first
    assert rest == []
    _, said = choose([poor, best], majority_rate=0.95)
    assert "Beware: always answering the commonest class is right in 95.0 %" in said[-1]


def test_the_table_is_ranked_and_says_what_is_not_there():
    entries = entries_of([candidate("poor", sharpness=9.0), candidate("good", sharpness=2.2, certified=0.5)])
    assert [entry.name for entry in entries] == ["good", "poor"]
    assert entries[1].marks["certified"].text == "none"
    assert entries[1].marks["attacked"].text == "n/a"
    assert entries[0].marks["log-loss"].best
    assert (entries[0].verdict.tone, entries[1].verdict.tone) != ("good", "good")


@pytest.mark.parametrize("classes", [2, 3])
def test_a_linear_models_radii_are_the_distances_from_its_planes(classes):
    x, y = load_iris(return_X_y=True)
    x, y = x[50 * (3 - classes) :], y[50 * (3 - classes) :] - (3 - classes)
    model = LogisticRegression(max_iter=1000).fit(x, y)
    inputs, labels = torch.as_tensor(x), torch.as_tensor(y).long()
    radii = linear_radii(model, inputs, labels)
    assert torch.equal(radii > 0, torch.as_tensor(model.predict(x) == y))
    if classes == 2:
        distance = np.abs(model.decision_function(x)) / np.linalg.norm(model.coef_)
        assert radii[radii > 0].numpy() == pytest.approx(distance[radii.numpy() > 0])
    directions = torch.randn(200, *inputs.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    steps = 0.999 * radii.view(1, -1, 1) * directions / directions.norm(dim=2, keepdim=True)
    moved = model.predict((inputs + steps).reshape(-1, 4).numpy()).reshape(200, -1)
    assert (moved == y)[:, radii.numpy() > 0].all()


@pytest.fixture
def table(tmp_path):
    x, y = load_iris(return_X_y=True)
    rows = [",".join(map(str, [*values, f"kind{label}"])) for values, label in zip(x, y, strict=True)]
    path = tmp_path / "iris.csv"
    path.write_text("\n".join(["a,b,c,d,kind", *rows]) + "\n")
    return path


@pytest.mark.parametrize("limit", [None, 90])
def test_the_scaled_twin_is_calibrated_on_what_it_has_not_seen(table, limit):
    comparison = Comparison.of(Settings(data=str(table), label="kind", limit=limit), seeds=1)
    (run,) = next(row for row in comparison.rows() if row.name == SCALED).runs
    whole = comparison.dataset if limit is None else data.limit(comparison.dataset, limit, seed=0)
    seen = data.limit(comparison.dataset, run.settings.limit, seed=0).train
    held_out = comparison._held_out(0)

    def as_set(samples):
        return sorted(map(tuple, samples.inputs.tolist()))

    assert len(held_out) >= 30
    assert as_set(seen.join(held_out)) == as_set(whole.train)


@pytest.mark.slow
def test_the_command_compares_goes_on_and_does_nothing_twice(table):
    flags = ("--label", "kind", "--epochs", "3", "--width", "16", "--device", "cpu", "--jobs", "1")
    done = lipscale("compare", "--data", table, *flags, cwd=table.parent, env={"COLUMNS": "160"})
    for word in ("LiST", "twin + temperature", "gradient boosting + calibration", "Choose ", "n/a", "CPU time"):
        assert word in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith("LiST") and re.search(r" s \*", line)]
    page = Path(table.parent / "comparisons" / "iris" / "compare.html")
    assert "Choose " in page.read_text()
    assert "log-loss" in page.read_text().split("<svg")[1].split("</svg>")[0]
    assert "http://" not in page.read_text()
    assert "https://" not in page.read_text()
    before = {path: at for path, at in stamps(page.parent).items() if path != page}
    again = lipscale("compare", "--data", table, *flags, cwd=table.parent, env={"COLUMNS": "160"})
    assert again.stdout == done.stdout
    assert "fitting" not in again.stderr
    assert {path: at for path, at in stamps(page.parent).items() if path != page} == before
