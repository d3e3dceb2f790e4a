"""The paper's figures: what is drawn is what was measured, and missing runs leave gaps, not errors."""

import dataclasses
import math
import re
import shutil
from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from lipscale.certificates.robustness import Attack
from lipscale.experiments import figures
from lipscale.experiments.fronts import front
from lipscale.experiments.plan import AttackBudget, shared
from lipscale.experiments.profiles import CERTIFIED_AT, SMOKE
from lipscale.experiments.recipes import constants_figure, fixed, lipschitz_scaling, offsets_figure, starts_figure
from lipscale.experiments.results import Results
from lipscale.metrics import ece, ece_limit, esce
from lipscale.report.labels import place_labels
from lipscale.report.theme import style
from lipscale.runs import attack_run, load, train
from lipscale.settings import replace

DATA = "digits"
TINY = dataclasses.replace(
    SMOKE,
    sets={DATA: {"data": "digits", "limit": 400, "model": "mlp", "width": 16, "cross_fit": False}},
    search={"epochs": 4, "phase2_epochs": 1, "lipschitz": 1.0},
    epochs={**SMOKE.epochs, "fixed": 4},
    seeds={DATA: (0,)},
    more_seeds={DATA: (0,)},
    constants=(1, 8),
    offsets=(0, 2),
    starts=(1, 10),
    attack=AttackBudget(name="pgd", samples=20),
)
ROWS = [*constants_figure(TINY, DATA), *offsets_figure(TINY, DATA), *starts_figure(TINY, DATA)]
PLAN = shared(run for row in ROWS for run in row.runs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every run of the tiny profile, really trained."""
    base = tmp_path_factory.mktemp("runs")
    for planned in PLAN:
        train(replace(planned.settings, out=base / planned.name))
    return base


@pytest.fixture(scope="module")
def results(folder):
    found = Results(folder, PLAN)
    assert len(found) == len(PLAN) == 5  # LiST from L0 = 1 without an offset is shared
    return found


@pytest.fixture(scope="module")
def drawn(results):
    """All figures, by name."""
    return {figure.name: figure for figure in figures.draw_figures(TINY, results)}


def points(axes, marker=None):
    """What lines are drawn through, or single points with a marker."""
    lines = [line for line in axes.get_lines() if marker is None or line.get_marker() == marker]
    return [list(zip(*map(list, line.get_data()), strict=True)) for line in lines]


def line_labelled(axes, label):
    return next(line for line in axes.get_lines() if line.get_label() == label)


def check_layout(figure: Figure):
    """No text leaves the figure, and no two of one panel overlap."""
    with style():
        figure.draw_without_rendering()
    whole = figure.bbox
    for axes in figure.axes:
        texts = [text for text in (*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label) if text.get_text()]
        boxes = list(map(Text.get_window_extent, texts))  # without the line from a far label to its point
        for i, box in enumerate(boxes):
            assert all(whole.contains(*corner) for corner in box.corners()), texts[i]
            assert not any(box.overlaps(other) for other in boxes[:i]), texts[i]


def test_all_figures_come_with_words_and_numbers_and_nothing_is_clipped(drawn):
    assert list(drawn) == [
        *("scaling-digits", "dynamics-digits", "pareto-digits", "reliability-fixed-digits", "reliability-list")
    ]
    for figure in drawn.values():
        assert DATA in figure.title or "each data set" in figure.title
        assert figure.caption
        assert re.search(r"\d\.\d", " ".join(figure.caption))
        assert all(sentence.endswith(".") and "nan" not in sentence for sentence in figure.caption)
        check_layout(figure.figure)


def test_scaling_draws_the_measured_errors_over_l(results, drawn):
    shown = drawn["scaling-digits"]
    left, right = shown.figure.axes
    runs = [results.of(fixed(TINY, constant, DATA))[0] for constant in TINY.constants]
    found = results.of(lipschitz_scaling(TINY, 0.0, DATA))[0]
    assert list(line_labelled(left, "ECE").get_xdata()) == [1, 8]
    assert list(line_labelled(left, "ECE").get_ydata()) == [run.metrics.ece for run in runs]
    assert list(line_labelled(left, "ESCE, signed").get_ydata()) == [run.metrics.esce for run in runs]
    assert points(left, "*") == [[(found.constant, found.metrics.ece)]]
    assert left.get_ylim() == right.get_ylim()
    assert left.get_xscale() == right.get_xscale() == "log"
    assert [label.get_text() for label in left.get_xticklabels()] == ["1", "8"]
    low, high = left.get_xlim()
    assert all(low < constant < high for constant in (1, 8, found.constant))
    assert all(f"{run.metrics.ece:.4f}" in shown.caption[0] for run in runs)
    assert f"L* = {found.constant:.4g}" in shown.caption[1]


def test_scaling_by_temperature_starts_from_the_run_and_is_least_near_the_fitted_temperature(results, drawn):
    right = drawn["scaling-digits"].figure.axes[1]
    run = results.of(fixed(TINY, 1.0, DATA))[0]
    curve = dict(points(right)[1])
    assert list(line_labelled(right, "ECE").get_xdata()) == list(curve)
    assert curve[1.0] == pytest.approx(run.metrics.ece, abs=1e-12)
    assert dict(points(right)[0])[1.0] == pytest.approx(run.metrics.esce, abs=1e-12)
    logits, labels = run.answers.logits.double(), run.answers.labels
    for scale in (min(curve), 2.0, max(curve)):
        assert curve[scale] == pytest.approx(ece(scale * logits, labels))
    ((best, least),) = points(right, "D")[0]
    assert least == min(curve.values()) == curve[best]
    wanted = 1 / run.metrics.temperature
    assert line_labelled(right, "1/T* (smallest NLL)").get_xdata()[0] == pytest.approx(wanted)
    # T* makes the likelihood largest, not the ECE least; where confidence and accuracy agree both are near
    assert abs(math.log(best / wanted)) < math.log(2)
    assert esce(logits * min(curve), labels) < 0 < esce(logits * max(curve), labels)
    assert min(curve) < wanted < max(curve)


def test_the_grid_of_scales_is_logarithmic_and_holds_one():
    grid = figures.scale_grid(0.3, 5.0)
    assert 1.0 in grid
    assert grid[0] <= 0.3
    assert grid[-1] >= 5.0
    assert all(b / a == pytest.approx(2 ** (1 / figures.STEPS)) for a, b in pairwise(grid))


def test_dynamics_draws_phase_one_of_every_start(results, drawn):
    shown = drawn["dynamics-digits"]
    left, right = shown.figure.axes
    (inset,) = right.child_axes
    ends = []
    for start, row in zip(TINY.starts, starts_figure(TINY, DATA), strict=True):
        run = results.of(row)[0]
        first = run.phase_one
        assert len(first) == 4
        line = line_labelled(left, f"L0 = {start:g}")
        assert list(line.get_ydata()) == [start, *(each.lipschitz for each in first)]
        temperatures = [(float(e), each.temperature) for e, each in enumerate(first, 1)]
        assert temperatures in points(right)
        assert temperatures in points(inset)
        assert line.get_ydata()[-1] == run.constant
        ends.append(run.constant)
    assert len({line.get_color() for line in left.get_lines()}) == 2
    spread = 100 * (max(ends) - min(ends)) / (sum(ends) / 2)
    assert f"{spread:.1f} %" in shown.caption[-1]
    assert all(f"{end:.4g}" in shown.caption[-1] for end in ends)


def test_the_inset_covers_no_curve(drawn):
    right = drawn["dynamics-digits"].figure.axes[1]
    (inset,) = right.child_axes
    right.figure.draw_without_rendering()
    box = inset.get_window_extent()
    for line in right.get_lines():
        path = right.transData.transform(line.get_xydata()) if len(line.get_xdata()) > 2 else []
        assert not any(box.contains(x, y) for x, y in path)


def test_the_fronts_points_are_the_measured_ones_and_show_who_is_calibrated(results, drawn):
    shown = drawn["pareto-digits"]
    left, right = shown.figure.axes
    found = results.of(lipschitz_scaling(TINY, 0.0, DATA))[0]
    assert points(left, "*") == [[(found.metrics.accuracy, found.certified(CERTIFIED_AT))]]
    for axes, rows in ((left, constants_figure(TINY, DATA)), (right, offsets_figure(TINY, DATA))):
        circles = [line for line in axes.get_lines() if line.get_marker() == "o"]
        for circle, row in zip(circles, rows, strict=True):
            run = results.of(row)[0]
            (place,) = zip(*circle.get_data(), strict=True)
            assert place == (run.metrics.accuracy, run.certified(CERTIFIED_AT))
            assert (circle.get_markerfacecolor() != "white") is run.calibrated
    assert [text.get_text() for text in left.texts] == ["L = 1", "L = 8", f"LiST, L* = {found.constant:.3g}"]
    errors = [results.of(row)[0].metrics.ece for row in offsets_figure(TINY, DATA)]
    assert [text.get_text() for text in right.texts] == [
        f"xi = {offset:g}\nECE {error:.3f}" for offset, error in zip(TINY.offsets, errors, strict=True)
    ]


def test_the_words_hold_all_points_against_one_limit(results, drawn):
    rows = [*constants_figure(TINY, DATA), *offsets_figure(TINY, DATA)]
    for run in (results.of(row)[0] for row in rows):
        logits, labels, size = run.answers.logits, run.answers.labels, run.metrics.calibration_size
        allowed = size or round(run.metrics.train_size / 10)  # fixed L has no calibration set, and the same allowance
        assert run.limit == ece_limit(logits, labels, run.answers.bins, calibration_size=allowed)
        assert run.strict_limit == ece_limit(logits, labels, run.answers.bins) < run.limit
        if size:
            assert run.calibrated is run.metrics.as_calibrated_as_its_set
    shown = [results.of(row)[0] for row in offsets_figure(TINY, DATA)]
    below = sum(run.metrics.ece <= run.strict_limit for run in shown)
    assert f"Without that allowance {below} of {len(shown)} runs" in drawn["pareto-digits"].caption[-1]


def test_a_sweeps_front_holds_each_run_against_its_own_limit(results):
    rows = [*constants_figure(TINY, DATA), *offsets_figure(TINY, DATA)]
    found = [(row.name, results.of(row)) for row in rows]
    axes = front(found).figure.axes[0]
    circles = [line for line in axes.get_lines() if line.get_marker() == "o"]
    verdicts = [run.metrics.as_calibrated_as_its_set for _, (run,) in found]
    assert [circle.get_markerfacecolor() != "white" for circle in circles] == verdicts
    limits = [f"limit {run.metrics.ece_limit:.4f}" for _, (run,) in found]
    assert all(limit in words for limit, words in zip(limits, front(found).caption[1:], strict=True))


def test_reliability_titles_carry_the_error(results, drawn):
    shown = drawn["reliability-fixed-digits"]
    errors = [results.of(row)[0].metrics.ece for row in constants_figure(TINY, DATA)]
    titles = [axes.get_title() for axes in shown.figure.axes if axes.get_title()]
    assert titles == [f"L = {c:g}, ECE {e:.3f}" for c, e in zip(TINY.constants, errors, strict=True)]
    assert shown.caption[0].startswith("L = 1: mean confidence")
    (title,) = [axes.get_title() for axes in drawn["reliability-list"].figure.axes if axes.get_title()]
    assert title.startswith("digits, ECE 0.")


@pytest.mark.parametrize("kept", range(5))
def test_with_one_run_only_there_is_no_error(folder, kept):
    some = Results(folder, [PLAN[kept]])
    assert len(some) == 1
    drawn = figures.draw_figures(TINY, some)
    assert drawn
    for figure in drawn:
        check_layout(figure.figure)


def test_without_any_run_there_is_no_figure(folder):
    assert figures.draw_figures(TINY, Results(folder, [])) == []
    assert figures.draw_figures(TINY, Results(folder / "nowhere", PLAN)) == []
    assert front([]) is None
    assert front([("a", [])]) is None


def test_several_seeds_are_one_point_and_a_range(results):
    """Two runs that pass for seeds of one."""
    both = [results.of(row)[0] for row in constants_figure(TINY, DATA)]
    drawn = front([("both", both), ("none", []), ("one", both[:1])])
    axes = drawn.figure.axes[0]
    means = [sum(run.metrics.accuracy for run in both) / 2, sum(run.certified(CERTIFIED_AT) for run in both) / 2]
    assert points(axes, "o")[0][0] == pytest.approx(means)
    assert sorted(points(axes, ".")[0]) == sorted((run.metrics.accuracy, run.certified(CERTIFIED_AT)) for run in both)
    assert [text.get_text() for text in axes.texts] == ["both", "one"]
    assert "as means of 2 seeds" in drawn.caption[1]


def test_a_point_without_a_constant_has_no_certificate(results):
    run = results.of(fixed(TINY, 8, DATA))[0]
    metrics = dataclasses.replace(run.metrics, lipschitz_constant=None, certified_accuracy={})
    free = dataclasses.replace(run, metrics=metrics)
    assert free.certified(CERTIFIED_AT) == 0
    assert front([("standard", [free])]) is None  # it has no place on the front
    drawn = front([("standard", [free]), ("fixed", [run])])
    assert "not drawn: standard" in drawn.caption[-1]
    assert all("standard" not in text.get_text() for text in drawn.figure.axes[0].texts)


def test_robust_accuracy_is_said_where_it_is_known(folder, drawn, tmp_path):
    row = constants_figure(TINY, DATA)[0]
    name = row.runs[0].name
    assert "PGD" not in " ".join(drawn["pareto-digits"].caption)
    shutil.copytree(folder / name, tmp_path / name)
    attack_run(load(tmp_path / name), Attack(steps=3, restarts=1), samples=20)
    (run,) = Results(tmp_path, row.runs).of(row)
    caption = front([("L = 1", [run])]).caption
    assert f"PGD at 0.5 leaves {100 * run.robust.robust_accuracy:.1f} %" in caption[1]


def test_labels_keep_off_each_other_and_off_points():
    crowd = [(0.5 + 0.01 * i, 0.5 + 0.01 * (i % 3)) for i in range(9)]
    with style():
        figure = Figure(figsize=(4, 4))
        axes = figure.subplots()
        axes.plot(*zip(*crowd, strict=True), "o")
        axes.set(xlim=(0, 1), ylim=(0, 1))
        place_labels(axes, crowd, [f"label {i}" for i in range(9)])
        figure.draw_without_rendering()
    boxes = list(map(Text.get_window_extent, axes.texts))
    assert len(boxes) == 9
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    dots = axes.transData.transform(crowd)
    assert not any(box.contains(x, y) for box in boxes for x, y in dots)
    inside = axes.get_window_extent()
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes)
