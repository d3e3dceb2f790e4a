"""Comparisons: ranked by a proper score, the best marked, and nothing ranked that cannot be compared."""

from dataclasses import replace

import pytest
import torch

from experiment_makers import made_up_metrics
from lipscale.data import Column
from lipscale.report.record import Answers, RunRecord
from lipscale.report.samples import worth_seeing
from lipscale.report.standings import ranked_runs
from lipscale.report.tables import cells
from lipscale.report.words import meaning
from lipscale.settings import Settings


def record(name, index, folder, **changes):
    return RunRecord(name, index, folder, Settings(), made_up_metrics(**changes), "pixels in [0, 1]")


@pytest.fixture
def runs(tmp_path):
    return [
        record("poor", 0, tmp_path, nll=0.9, accuracy=0.95, seconds=5.0),
        record("good", 1, tmp_path, nll=0.3, calibration_error_limits=(0.0, 0.01), seconds=9.0),
        record("free", 2, tmp_path, nll=0.5, lipschitz_constant=None, seconds=9.0),
    ]


def best(entries):
    return {entry.name: {name for name, mark in entry.marks.items() if mark.best} for entry in entries}


def test_runs_come_by_their_log_loss_with_the_best_of_each_column_marked(runs):
    found = ranked_runs(runs)
    assert [entry.name for entry in found] == ["good", "free", "poor"]
    assert best(found) == {
        "good": {"log-loss", "calibration error", "certified accuracy at 0.25"},
        "free": set(),
        "poor": {"accuracy", "training time", "certified accuracy at 0.25"},  # ties share it
    }
    assert found[1].marks["certified accuracy at 0.25"].text == "none"


def test_runs_on_different_data_are_not_ranked(runs):
    other = replace(runs[1], settings=Settings(data="mnist"))
    found = ranked_runs([runs[0], other])
    assert [entry.name for entry in found] == ["poor", "good"]
    assert not any(best(found).values())


def test_sliders_and_captions_count_the_same_samples():
    answers = Answers(2 * torch.randn(9973, 3), torch.randint(0, 3, (9973,)), torch.rand(9973).double())
    places = torch.arange(1001, dtype=torch.float64) / 1000
    coverage, accuracy = answers.selective_at(places)
    certified = answers.certified_at(places)
    for i in (0, 250, 900, 999, 1000):
        sure = answers.confidence >= i / 1000
        assert coverage[i] == pytest.approx(float(sure.double().mean()), abs=1e-12)
        among = float(answers.right[sure].double().mean()) if sure.any() else None
        assert accuracy[i] == (among if among is None else pytest.approx(among, abs=1e-12))
        kept = (answers.radii >= i / 1000) & answers.right & (answers.radii > 0)
        assert certified[i] == pytest.approx(float(kept.double().mean()), abs=1e-12)


def test_rows_of_a_table_are_shown_with_their_values():
    columns = (Column("age"), Column("kind", ("red", "blue")), Column("day", dates="iso"))
    inputs = torch.tensor([[30.5, 1.0, 365.0], [float("nan"), 0.0, 0.5]])
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    hardest, _ = worth_seeing(logits, labels, torch.tensor([0.1, 0.2]), inputs, ("no", "yes"), columns)
    assert [sample.values for sample in hardest] == [
        {"age": "30.5", "kind": "blue", "day": "1971-01-01"},
        {"age": "missing", "kind": "red", "day": "1970-01-01"},
    ]


def test_every_measured_line_of_a_report_is_explained():
    unexplained = {
        name
        for name in cells(
            made_up_metrics(classes=("a", "b"), confusion=((9, 1), (2, 8)), majority_rate=0.5, balanced_accuracy=0.8)
        )
        if not meaning(name)
    }
    assert unexplained <= {"training samples"}
    assert meaning("ECE limit") != meaning("ECE")
