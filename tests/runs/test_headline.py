"""What one sees first of a run: a line that cannot contradict the verdict, and five numbers."""

import pytest

from experiment_makers import made_up_metrics
from lipscale.metrics.verdict import how_far_off
from lipscale.report.verdict import verdict
from lipscale.runs.headline import first_numbers, headline
from lipscale.training.epoch import Epoch, counted
from lipscale.training.progress import describe


@pytest.mark.parametrize(
    ("changes", "text", "tone"),
    [
        ({}, "calibrated to within 2 points, certified", "good"),
        ({"calibrated": False}, "not calibrated to within 2 points, certified", "bad"),
        ({"calibrated": None}, "certified; 1,000 test samples cannot tell whether it is calibrated", "open"),
        ({"lipschitz_constant": None}, "calibrated to within 2 points, without a certificate", "good"),
    ],
)
def test_the_verdict_in_a_line(changes, text, tone):
    found = headline(made_up_metrics(**changes))
    assert found.text.startswith(text)
    assert found.tone == tone


def test_a_network_that_always_answers_the_same_is_no_good_news():
    known = {"classes": ("legit", "fraud"), "confusion": ((990, 0), (10, 0)), "balanced_accuracy": 0.5}
    found = headline(made_up_metrics(**known, majority_rate=0.99, always_answers="legit", accuracy=0.99))
    assert found == ("it always answers 'legit': its accuracy deceives", "bad")
    assert "always 'legit': 99.0 %" in first_numbers(made_up_metrics(**known, majority_rate=0.99))["accuracy"].note


def test_five_numbers_and_no_more():
    numbers = first_numbers(made_up_metrics(phase2_epochs=4, train_size=900, calibration_size=100))
    assert {name: cell.value for name, cell in numbers.items()} == {
        "accuracy": "90.0 %",
        "calibration error": "1 point",
        "certified accuracy at 0.25": "60.0 %",
        "Lipschitz constant L": "5",
        "training time": "0 s",
    }
    assert numbers["training time"].note == "44 epochs, 1,000 samples"
    in_turns = first_numbers(made_up_metrics(phase2_epochs=4, train_size=96, calibration_size=96))
    assert in_turns["training time"].note == "44 epochs, 96 samples"
    assert first_numbers(made_up_metrics(lipschitz_constant=None))["certified accuracy"].value == "none"


def test_a_network_that_is_not_calibrated_is_never_called_neither_over_nor_under_confident():
    error = {"calibration_error": 0.2, "calibration_error_limits": (0.05, 0.4)}
    said = how_far_off(made_up_metrics(calibrated=False, esce=(-0.1, 0.1), **error), 30)
    assert "It is not calibrated" in said
    assert "neither" not in said
    assert "these samples cannot tell" in said


def test_one_epoch_is_one_epoch():
    assert (counted(1, "epoch"), counted(2, "epoch"), counted(0.5, "minute")) == ("1 epoch", "2 epochs", "0.5 minutes")
    assert "after 1 epoch of Phase I" in " ".join(verdict(made_up_metrics(phase1_epochs=1), "pixels in [0, 1]"))


def test_progress_says_whose_accuracy_it_shows():
    first = Epoch(1, 1, 0.5, 0.7, 2.0, 1.1, 0.1, 0.8, 1.0)
    second = Epoch(2, 1, 0.5, 0.7, 2.0, None, None, None, 1.0)
    assert "calibration accuracy 80.0 %" in describe(first, remaining=3)
    assert "training accuracy 70.0 %" in describe(second, remaining=3)
    assert describe(first, remaining=3661).endswith("at most 1:01:01 left")
    assert len(describe(first, remaining=3, brief=True)) < 60
