"""The report's section on classes: what it shows of two, of a few and of two hundred classes."""

import html
import re
from dataclasses import asdict

import pytest
import torch
from sklearn.metrics import precision_recall_curve, precision_score, recall_score

from conftest import lipscale
from experiment_makers import made_up_metrics
from lipscale.metrics import score_classes
from lipscale.report.classes import MOST_ROWS, class_rows, render_classes, threshold_rows
from lipscale.report.ranking import ranking_curves
from lipscale.report.record import Answers, RunRecord
from lipscale.report.tables import side_by_side
from lipscale.report.theme import save_figure
from lipscale.report.verdict import verdict
from lipscale.settings import Settings


def record(classes=2, n=2000, rare=0.05, **changes):
    """A run that ranks well, and whose last class is rare."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes - 1, (n,), generator=generator)
    labels[: int(rare * n)] = classes - 1
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(n), labels] += 2.0
    logits[:, -1] -= 1.5
    names = tuple(f"c{i}" for i in range(classes))
    certified = {"0.25": (logits.argmax(1) == labels) & (torch.arange(n) % 2 == 0)}
    scores = score_classes(logits, labels, classes=names, certified=certified)
    metrics = made_up_metrics(**asdict(scores), test_size=n, **changes)
    answers = Answers(logits, labels, torch.ones(n, dtype=torch.float64))
    return RunRecord("run", 0, None, Settings(), metrics, "pixels", answers=answers)


def text_of(section):
    return html.unescape(" ".join(re.sub(r"<svg.*?</svg>|<[^>]+>", " ", str(section), flags=re.S).split()))


def test_two_classes_have_a_table_a_matrix_a_curve_and_the_cost_of_thresholds():
    run = record()
    section = text_of(render_classes([run], ranking_curves([run])))
    (a, b), (c, d) = run.metrics.confusion
    for said in (f"c0 {a} {b}", f"c1 {c} {d}", "What a threshold costs", "ROC and precision-recall curve", "'c1'"):
        assert said in section
    assert f"{run.metrics.auc * 100:.1f} % of pairs" in section
    p, truth = run.answers.logits.softmax(1)[:, 1], run.answers.labels
    rows = {float(row["threshold"]): row for row in threshold_rows(run)}
    assert {0.5, 0.05, 0.01} <= rows.keys()
    for threshold, row in rows.items():
        answered = p >= threshold
        assert float(row["precision"]) == pytest.approx(precision_score(truth.numpy(), answered.numpy()), abs=1e-4)
        assert int(row["found"].split()[0]) == round(recall_score(truth.numpy(), answered.numpy()) * 100)
        assert int(row["missed"]) == 100 - int(row["found"].split()[0])


def test_the_curve_passes_through_scikit_learns_points(tmp_path):
    run = record()
    drawn = ranking_curves([run, record()])
    line = drawn.figure.axes[1].lines[0]
    precision, recall, _ = precision_recall_curve(run.answers.labels, run.answers.logits.softmax(1)[:, 1])
    points = {(round(float(r), 9), round(float(p), 9)) for r, p in zip(recall, precision, strict=True)}
    for r, p in list(zip(*line.get_data(), strict=True))[1:]:
        assert (round(float(r), 9), round(float(p), 9)) in points
    assert save_figure(drawn, tmp_path)[0].stat().st_size > 1000


def test_two_hundred_classes_stay_readable():
    run = record(classes=200, n=6000)
    section = text_of(render_classes([run], ranking_curves([run])))
    assert f"The {MOST_ROWS} of 200 classes with the smallest recall" in section
    assert "What is taken for what most often" in section
    assert "threshold" not in section
    assert len(section) < 6000
    recalls = [float(row["recall"]) for row in class_rows(run.metrics, most=12, brief=True)]
    assert len(recalls) == 12
    assert recalls == sorted(recalls)


def test_what_is_not_certified_or_not_measured_is_left_out():
    bare = record(lipschitz_constant=None)
    assert "certified" not in text_of(render_classes([bare], None))
    old = RunRecord("old", 0, None, Settings(), made_up_metrics(), "pixels")
    assert render_classes([old], ranking_curves([old])) == ""
    assert class_rows(old.metrics, most=12) == []
    alone = record(rare=0.0)
    assert threshold_rows(alone) == []
    assert ranking_curves([alone]) is None
    assert "c1 0 - - " in text_of(render_classes([alone], None))


def test_runs_from_before_stand_beside_new_ones():
    old = RunRecord("old", 0, None, Settings(), made_up_metrics(), "pixels")
    new = record(lipschitz_constant=None)  # with other rows missing
    rows = dict(side_by_side([old, new]))
    assert [cell.value for cell in rows["balanced accuracy"]] == [
        "not measured",
        f"{new.metrics.balanced_accuracy:.4f}",
    ]
    assert rows["certified accuracy at 0.25"][0].value == "0.6000"


def test_names_from_files_stay_text():
    run = record()
    object.__setattr__(run.metrics, "classes", ("<script>alert(1)</script>", "[b]"))
    section = str(render_classes([run], ranking_curves([run])))
    assert "<script>" not in section
    assert "[b]" in section


def test_an_answer_that_is_always_the_same_takes_the_green_badge_away(tmp_path):
    rows = ["a,b,kind"] + [f"{i % 7},{i % 11},{'rare' if i % 100 == 0 else 'usual'}" for i in range(1000)]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    flags = ("--label", "kind", "--epochs", "8", "--width", "8", "--device", "cpu", "--out", tmp_path / "run")
    done = lipscale("train", "--data", tmp_path / "t.csv", *flags)
    said = " ".join(done.stdout.split())
    assert "always answers 'usual'" in said
    assert "--class-weights balanced" in said
    page = (tmp_path / "run" / "report.html").read_text()
    assert 'class="badge good"' not in page
    assert html.escape("it always answers 'usual'").replace("&#x27;", "&#39;") in page
    assert "Class by class" in page


def test_the_verdict_names_the_majority_beside_the_accuracy():
    assert "always answering 'c0' would be right for 95.0 %" in verdict(record(accuracy=0.97).metrics, "")[0]
