"""What post-hoc calibration would change about a run."""

import json

import pytest
import torch

import lipscale
from conftest import lipscale as command
from lipscale._random import random_stream
from lipscale.calibration.posthoc import CALIBRATORS, calibrator
from lipscale.certificates import prove
from lipscale.data import split_calibration
from lipscale.errors import UserError
from lipscale.metrics import ece, nll
from lipscale.runs import recalibrate_run
from lipscale.runs.assembly import read_data
from lipscale.runs.evaluation import certify_samples
from lipscale.runs.posthoc import FOLDS, SOME
from makers import refuses


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    runs = {}

    def made(name, **changes):
        if name not in runs:
            out = tmp_path_factory.mktemp("posthoc") / name
            settings = lipscale.Settings(data="digits", width=16, epochs=2, out=out, **changes)
            runs[name] = lipscale.train(settings, progress=False)
        return runs[name]

    return made


@pytest.fixture
def run(make):
    return make("list", phase2_epochs=1)


def test_the_metrics_of_a_run_have_it(run):
    found = run.metrics.posthoc
    assert tuple(found.rows) == SOME
    none, temperature, vector = found.rows.values()
    assert (none.accuracy, none.nll, none.ece) == (run.metrics.accuracy, run.metrics.nll, run.metrics.ece)
    assert none.certified_accuracy == temperature.certified_accuracy == run.metrics.certified_accuracy
    assert [row.radii for row in (none, temperature, vector)] == ["kept", "kept", "own"]
    assert temperature.accuracy == none.accuracy
    assert vector.certified_accuracy != none.certified_accuracy
    assert (found.fitted_on, found.samples) == ("test", 360 - 360 // FOLDS)
    assert lipscale.load(run.folder).metrics.posthoc == found
    assert recalibrate_run(run) == found


def test_no_sample_is_calibrated_by_itself(run):
    """The answers in turns are those of plain fits on the other folds."""
    dataset, _ = read_data(run.settings, stored=run.preprocessing, classes=run.classes)
    logits = certify_samples(prove(run.net, (1, 8, 8)), dataset.test).logits
    labels = dataset.test.labels.long()
    fold = torch.randperm(len(labels), generator=random_stream(0, "posthoc")) % FOLDS
    mapped = torch.empty_like(logits)
    for k in range(FOLDS):
        fitted = calibrator("vector").fit(logits[fold != k], labels[fold != k])
        mapped[fold == k] = fitted.transform(logits[fold == k])
    row = run.metrics.posthoc.rows["vector"]
    assert row.nll == pytest.approx(nll(mapped, labels))
    assert row.ece == pytest.approx(ece(mapped, labels))


def test_the_calibration_part_is_the_one_of_the_training(make, caplog):
    run = make("phase one", phase1_only=True)
    found = recalibrate_run(run, ["none", "temperature"], on_calibration=True)
    assert caplog.text == ""
    assert (found.fitted_on, found.samples) == ("calibration", run.metrics.calibration_size)
    dataset, _ = read_data(run.settings, stored=run.preprocessing, classes=run.classes)
    _, held_out = split_calibration(
        dataset.train, run.settings.calibration_fraction, seed=run.settings.seed, classes=run.classes
    )
    with torch.no_grad():
        fitted = calibrator("temperature").fit(run.net(held_out.inputs), held_out.labels)
        mapped = fitted.transform(run.net(dataset.test.inputs))
    assert found.rows["temperature"].nll == pytest.approx(nll(mapped, dataset.test.labels), rel=1e-4)


def test_what_was_trained_on_is_named_and_what_is_not_there_is_refused(make, run, caplog):
    recalibrate_run(run, ["temperature"], on_calibration=True)
    assert "Phase II of" in caplog.text
    refuses(lambda: recalibrate_run(make("standard", method="standard"), on_calibration=True), "no calibration part")
    with pytest.raises(UserError, match="unknown calibrator 'platt'; known: none, temperature"):
        recalibrate_run(run, ["platt"])


def test_an_unconstrained_network_has_no_radii_to_lose(make):
    rows = make("standard", method="standard").metrics.posthoc.rows
    assert {row.radii for row in rows.values()} == {"none"}
    assert all(row.certified_accuracy == {} and row.median_radius is None for row in rows.values())


def test_the_command(run):
    shown = command("calibrate", run.folder).stdout
    for word in ("What post-hoc calibration would change", "temperature", "kept", "own", "four fifths"):
        assert word in shown
    found = json.loads(command("calibrate", run.folder, "--with", "all", "--json").stdout)
    assert list(found["rows"]) == list(CALIBRATORS)
    wrong = command("calibrate", run.folder, "--with", "platt", check=False)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
