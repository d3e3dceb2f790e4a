"""Conformal sets and outlier scores of whole runs: which samples calibrate, what attacks leave, and what is refused."""

import dataclasses
import json
import math

import numpy as np
import pytest

import lipscale
from conftest import real_folder
from lipscale import Settings, UnsoundError, UserError, replace
from lipscale.certificates import ConformalScore, OutlierScores, Proof
from lipscale.cli.conformal import conformal
from lipscale.cli.outliers import ood
from lipscale.cli.wording import as_commands
from lipscale.data import load_dataset
from lipscale.runs import conformal_run, outliers_run
from lipscale.runs.assembly import read_conformal, read_data
from makers import refuses, write_folder

QUICK = Settings(data="digits", epochs=4, width=32, device="cpu", cross_fit=False)
EPSILONS = (0.0, 0.05, 0.1, 0.25)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return lipscale.train(replace(QUICK, out=tmp_path_factory.mktemp("sets") / "run"), progress=False)


@pytest.fixture(scope="module")
def with_split(tmp_path_factory):
    out = tmp_path_factory.mktemp("sets") / "own"
    return lipscale.train(replace(QUICK, epochs=2, conformal_fraction=0.2, out=out), progress=False)


@pytest.fixture(scope="module")
def unconstrained(tmp_path_factory):
    out = tmp_path_factory.mktemp("sets") / "standard"
    return lipscale.train(replace(QUICK, epochs=1, method="standard", out=out), progress=False)


def keeps_its_promise(result, *, least):
    """Under attack coverage is 1 - alpha less its standard error, at every epsilon; sets are smaller than the box's."""
    for eps, at in result.at.items():
        error = math.sqrt(result.alpha * (1 - result.alpha) / at.attacked)
        assert at.attacked >= least
        assert at.robust_under_attack.coverage >= 1 - result.alpha - error
        assert at.robust_under_attack.coverage >= at.plain_under_attack.coverage
        assert at.robust.coverage >= result.plain.coverage
        assert at.robust.size < at.box_size if float(eps) else at.robust.size == pytest.approx(at.box_size)


def test_robust_sets_keep_their_coverage_under_attack_and_are_smaller_than_the_published_ones(run):
    result = conformal_run(run, epsilons=EPSILONS, splits=20, attack_samples=200, attack_steps=10)
    keeps_its_promise(result, least=80)
    assert result.at["0.25"].plain_under_attack.coverage < 0.85  # the attack is a real one
    assert result.calibrated_on.startswith("one half of the test part")
    assert (result.calibration_size, result.test_size) == (180, 180)


@pytest.mark.long
@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_on_real_pictures(name, tmp_path):
    folder = real_folder(name)
    settings = Settings(data=name, data_dir=folder.parent, limit=10_000, width=16, epochs=8, device="cpu")
    trained = lipscale.train(replace(settings, out=tmp_path / "run"), progress=False)
    result = conformal_run(trained, epsilons=EPSILONS, splits=20, attack_samples=2000)
    keeps_its_promise(result, least=900)


@pytest.mark.parametrize("name", ["aps", "raps", "class-conditional"])
def test_every_score_has_robust_sets(run, name):
    alpha = 0.2  # a class has some 18 samples
    result = conformal_run(run, alpha=alpha, epsilons=(0.1,), score=ConformalScore(name), attack_samples=60)
    at = result.at["0.1"]
    assert at.robust.size >= result.plain.size
    assert at.robust.coverage >= result.plain.coverage >= result.expected_coverage[0] - 0.05
    assert (at.box_size is None) == (name != "class-conditional")
    again = conformal_run(run, alpha=alpha, epsilons=(0.1,), score=ConformalScore(name), attack_samples=60)
    assert again == result


def test_a_split_of_its_own_trains_nothing_and_calibrates(with_split):
    settings, known = with_split.settings, {"stored": with_split.preprocessing, "classes": with_split.classes}
    dataset, _ = read_data(settings, **known)
    held_out = read_conformal(settings, **known)
    whole = load_dataset("digits").train
    assert len(held_out) == round(0.2 * len(whole))
    assert len(held_out) + len(dataset.train) == len(whole)
    rows = {tuple(row) for part in (held_out, dataset.train) for row in part.inputs.flatten(1).tolist()}
    assert rows == {tuple(row) for row in whole.inputs.flatten(1).tolist()}
    assert with_split.metrics.train_size + with_split.metrics.calibration_size <= 2 * len(dataset.train)
    assert with_split.metrics.train_size <= len(dataset.train)
    result = conformal_run(with_split)
    assert result.calibrated_on == "the run's own split"
    assert (result.calibration_size, result.test_size) == (len(held_out), 360)
    low, high = result.expected_coverage
    assert low - 0.03 <= result.plain.coverage <= high + 0.03
    refuses(lambda: conformal_run(with_split, splits=3), "split of its own")


def test_what_cannot_be_is_one_line(run, unconstrained):
    refuses(lambda: conformal_run(run, alpha=1.5), "between 0 and 1", "1.5")
    refuses(lambda: conformal_run(run, alpha=0.001), "takes 999 held-out samples, and there are 180")
    refuses(lambda: conformal_run(unconstrained, epsilons=(0.1,)), "carries no certificate", "`epsilon`")
    refuses(lambda: outliers_run(unconstrained, "fashion-mnist", epsilons=(0.1,)), "carries no certificate")
    refuses(lambda: outliers_run(run, "digits"), "was trained on digits")
    refuses(lambda: outliers_run(run, "fashion-mnst"), "no path and no data set", "'fashion-mnist'")
    plain = conformal_run(unconstrained)  # sets that promise nothing under attack need no certificate
    assert plain.at == {}
    assert plain.summary()["robust_coverage"] is None


def test_a_bound_that_is_too_small_is_noticed(run, monkeypatch):
    honest = Proof.__call__

    def boast(self, inputs):
        known = honest(self, inputs)
        return dataclasses.replace(known, bound=known.bound / 100, pairwise=known.pairwise / 100)

    monkeypatch.setattr(Proof, "__call__", boast)
    with pytest.raises(UnsoundError, match="a robust set is broken at epsilon 0.25"):
        conformal_run(run, epsilons=(0.25,), attack_samples=30, attack_steps=10)


def test_the_command_prints_what_scripts_look_for(run, capsys):
    conformal(run.folder, alpha=0.2, epsilon="0.1", attack_samples=30, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert 1 - 0.2 - 0.15 < printed["coverage"] <= printed["robust_coverage"] <= 1
    assert 0 < printed["size"] <= printed["robust_size"] <= 10
    assert printed["calibrated_on"].startswith("one half of the test part")
    assert (run.folder / "figures" / "conformal.png").stat().st_size > 10_000
    conformal(run.folder, score="aps")
    text = capsys.readouterr().out
    assert "one half of the test part" in text
    assert "95 % interval" in text
    with pytest.raises(UserError) as caught:
        conformal(run.folder, alpha=0.001)
    assert as_commands(str(caught.value)) == "--alpha 0.001 takes 999 held-out samples, and there are 180: give more"


def noise_file(folder, shape, n=40):
    path = folder / "noise.npz"
    np.savez(path, x=np.random.default_rng(0).random((n, *shape)).astype(np.float32))
    return path


class TestOutliers:
    def test_noise_is_told_apart_and_no_attack_beats_what_is_certified(self, run, tmp_path):
        result = outliers_run(run, str(noise_file(tmp_path, (1, 8, 8))), epsilons=(0.0, 0.1), attack_count=30)
        assert (result.inliers, result.outliers, result.attacked, result.converted) == (360, 40, 30, "")
        for found in result.scores.values():
            low, high = found.interval
            assert low <= found.clean.auroc <= high
            assert found.certified["0"].both.auroc == pytest.approx(found.clean.auroc, abs=1e-4)
            worst, attacked = found.certified["0.1"], found.attacked["0.1"]
            for part in ("outliers", "inliers", "both"):
                measured, proven = getattr(attacked.attacked, part), getattr(attacked.certified, part)
                assert proven.auroc <= measured.auroc <= attacked.clean.auroc
                assert proven.fpr95 >= measured.fpr95
                assert getattr(worst, part).auroc < found.clean.auroc
        assert result.scores["energy"].clean.auroc > 0.8

    def test_pictures_of_another_kind_are_converted_or_refused(self, run, tmp_path):
        folder = write_folder(tmp_path / "pictures", size=(20, 16), n=4)
        result = outliers_run(run, str(folder))
        assert result.outliers == 8
        refuses(lambda: outliers_run(run, str(noise_file(tmp_path, (3, 9, 9)))), "inputs of shape", "(40, 3, 9, 9)")

    def test_a_named_set_is_brought_to_the_runs_shape(self, run):
        data_dir = real_folder("fashion-mnist").parent
        result = outliers_run(run, "fashion-mnist", data_dir=data_dir)
        assert result.converted == "pictures of 1 x 28 x 28 were brought to 1 x 8 x 8"
        assert result.outliers == 10_000

    def test_a_wrong_range_is_noticed(self, run, tmp_path, monkeypatch):
        monkeypatch.setattr(OutlierScores, "ranges", lambda self, x, clean, eps: {n: (v, v) for n, v in clean.items()})
        with pytest.raises(UnsoundError, match="certified range of the score"):
            outliers_run(run, str(noise_file(tmp_path, (1, 8, 8))), epsilons=(0.1,), attack_count=10)

    def test_the_command(self, run, tmp_path, capsys):
        how = {"against": str(noise_file(tmp_path, (1, 8, 8))), "epsilon": "0.1", "attack_samples": 10}
        ood(run.folder, **how, as_json=True)
        energy = json.loads(capsys.readouterr().out)["scores"]["energy"]
        assert energy["certified"]["0.1"]["both"]["auroc"] < energy["clean"]["auroc"]
        ood(run.folder, **how)
        assert f"{energy['clean']['auroc']:.4f}" in capsys.readouterr().out
