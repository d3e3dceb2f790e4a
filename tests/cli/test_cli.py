"""Every command through the console script, as a user types it; and what happens when it is typed wrong."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

from conftest import lipscale, real_folder
from experiment_makers import made_up_metrics
from lipscale.cli.commands import app
from lipscale.cli.show import print_first_sight
from lipscale.cli.training import given_settings
from lipscale.errors import UserError
from lipscale.settings import Settings

QUICK = ("--limit", "300", "--epochs", "2", "--phase2-epochs", "1", "--width", "16", "--device", "cpu")
QUICK += ("--calibration-fraction", "0.1")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    done = lipscale("train", *QUICK, "--out", folder)
    return folder, done


def test_train_prints_plain_lines_without_a_terminal(run):
    folder, done = run
    lines = [line for line in done.stderr.splitlines() if line.startswith("phase")]
    assert len(lines) == 3
    for word in ("epoch 1", "L ", "T* ", "loss ", "accuracy ", "left"):
        assert word in lines[0]
    assert "\x1b" not in done.stderr + done.stdout
    assert f"Run folder: {folder}" in done.stderr
    assert "certified at 0.1412" in done.stdout
    assert len(done.stdout.splitlines()) <= 18  # the verdict, five numbers, what to do, where to go on
    assert f"Report: {folder / 'report.html'}" in done.stdout
    assert (folder / "report.html").stat().st_size < 5_000_000


def test_features_of_a_backbone_have_radii_in_feature_space_and_it_is_said(tmp_path):
    labels = np.arange(90) % 3
    np.savez(tmp_path / "features.npz", x=np.random.default_rng(0).normal(labels[:, None], 1.0, (90, 8)), y=labels)
    done = lipscale("train", "--data", tmp_path / "features.npz", "--epochs", "1", "--out", tmp_path / "run")
    assert "Radii are in feature space" in done.stdout
    assert "nothing is proven about changes of what it sees" in done.stdout
    assert "standard deviations, in feature space" in (tmp_path / "run" / "report.html").read_text()


def test_evaluate_prints_the_stored_metrics_again(run):
    folder, _ = run
    printed = json.loads(lipscale("evaluate", folder, "--attack", "none", "--json").stdout)
    assert printed == json.loads((folder / "metrics.json").read_text())
    assert {"ece_floor", "ece_limit", "calibrated", "intervals"} <= printed.keys()
    assert printed["calibrated"] in (True, False, None)
    low, high = printed["calibration_error_limits"]
    assert low <= printed["calibration_error"] <= high
    other = json.loads(lipscale("evaluate", folder, "--attack", "none", "--json", "--epsilon", "1/10,1").stdout)
    assert set(other["certified_accuracy"]) == {"0.1", "0.1412", "0.25", "0.5", "1"}
    assert other == json.loads((folder / "metrics.json").read_text())  # what a report shows


def test_evaluate_attacks_after_the_quick_numbers_and_keeps_the_result(run):
    folder, _ = run
    done = lipscale("evaluate", folder, "--attack-samples", "20", "--epsilon", "0.1,0.3")
    assert done.stdout.index("proven bound") < done.stdout.index("left by PGD")
    assert "PGD at 0.3: done" in done.stderr
    kept = json.loads((folder / "robustness.json").read_text())["pgd"]
    assert kept["samples"] == 20
    for row in kept["at"].values():
        assert row["certified_accuracy"] <= row["robust_accuracy"] <= kept["accuracy"]
    again = json.loads(lipscale("evaluate", folder, "--attack-samples", "20", "--epsilon", "0.1,0.3", "--json").stdout)
    assert again["robustness"] == kept


def test_evaluate_attacks_uncertainty_and_holds_it_against_the_worst_case(run):
    folder, _ = run
    flags = ("--attack", "ace,loss", "--attack-samples", "20", "--epsilon", "0.3")
    done = lipscale("evaluate", folder, *flags)
    assert done.stdout.index("Proven for every change") < done.stdout.index("Attacks on uncertainty, on 20 of 360")
    kept = json.loads((folder / "uncertainty.json").read_text())
    assert list(kept["at"]["0.3"]["attacked"]) == ["ace", "loss"]
    for measured in kept["at"]["0.3"]["attacked"].values():
        assert all(measured[name] <= kept["at"]["0.3"]["certified"][name] for name in ("ece", "nll", "aurc"))
    again = json.loads(lipscale("evaluate", folder, *flags, "--json").stdout)
    assert again["uncertainty"] == kept
    assert again["nll"] < again["worst_case"]["0.1412"]["nll"] < again["worst_case"]["0.3"]["nll"]
    lipscale("report", folder)
    page = (folder / "report.html").read_text()
    assert "Attacks on uncertainty, on 20 of 360" in page
    assert "Proven for every change of every input" in page
    wrong = lipscale("evaluate", folder, "--attack", "aces", check=False)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "--attack: expected none, pgd, autoattack, uncertainty, ace, " in wrong.stderr


def test_predict_answers_for_files_and_for_the_test_part(run, tmp_path):
    folder, _ = run
    shown = lipscale("predict", folder).stdout
    assert "certified radius" in shown
    assert "true_class" in shown
    (tmp_path / "row.csv").write_text(",".join(["0.5"] * 64) + "\n")
    answers = json.loads(lipscale("predict", folder, tmp_path / "row.csv", "--json").stdout)
    every = [f"p_{digit}" for digit in range(10)]
    assert [*answers[0]] == ["source", "label", "probability", "radius", "unit", *every]
    assert sum(answers[0][name] for name in every) == pytest.approx(1, abs=1e-12)
    assert answers[0][f"p_{answers[0]['label']}"] == answers[0]["probability"] == max(answers[0][n] for n in every)
    lipscale("predict", folder, tmp_path / "row.csv", "--out", tmp_path / "answers.csv", "--epsilon", "0.1")
    head, row = (tmp_path / "answers.csv").read_text().splitlines()
    assert head == ",".join(["source,label,probability,radius,unit,lowest,highest", *every])
    assert row.split(",")[1] == answers[0]["label"]
    lipscale("predict", folder, "--out", tmp_path / "answers.json")
    assert len(json.loads((tmp_path / "answers.json").read_text())) == 10
    refused = lipscale("predict", folder, "--out", tmp_path / "answers.txt", check=False)
    assert refused.returncode == 2
    assert ".csv, .parquet or .json" in refused.stderr


def test_data_list_tells_where_and_how(tmp_path):
    shown = " ".join(lipscale("data", "list", "--data-dir", tmp_path, env={"COLUMNS": "200"}).stdout.split())
    for word in ("digits", "embedded", "mnist", "fashion-mnist", "cifar10", "cifar100", "not found"):
        assert word in shown


def test_settings_come_from_defaults_then_yaml_then_flags(tmp_path):
    (tmp_path / "s.yaml").write_text(
        "limit: 300\ncross_fit: false\nepochs: 7\nminutes: 9\nwidth: 16\nphase2_epochs: 0\nseed: 5\n"
    )
    lipscale("train", tmp_path / "s.yaml", "--epochs", "1", "--out", tmp_path / "r")
    stored = (tmp_path / "r" / "settings.yaml").read_text()
    assert "epochs: 1\n" in stored  # the flag, which goes before minutes, too
    assert "seed: 5\n" in stored  # the file
    assert "window: 30\n" in stored  # the default
    assert "model: mlp\n" in stored  # resolved


def test_runs_get_a_folder_of_their_own_by_default(tmp_path):
    for _ in range(2):
        lipscale("train", *QUICK, "--phase2-epochs", "0", "--epochs", "1", cwd=tmp_path)
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"digits-mlp-list-1", "digits-mlp-list-2"}


def test_the_version_and_a_resumed_finished_run(run):
    import lipscale as package

    assert lipscale("--version").stdout.strip() == package.__version__
    again = lipscale("train", "--resume", run[0], "--verbose")
    assert "finished already" in again.stderr
    for word in ("adaptive ECE", "proven bound", "The temperature that fits the test set"):  # the rest of it
        assert word in again.stdout


def test_help_teaches():
    shown = lipscale("--help").stdout
    for command in ("train", "evaluate", "predict", "data"):
        assert command in shown
    detail = lipscale("train", "--help", env={"COLUMNS": "200"}).stdout
    for flag in (
        "--data",
        "--lipschitz",
        "--offset",
        "--epochs",
        "--phase2-epochs",
        "--limit",
        "--seed",
        "--resume",
    ):
        assert flag in detail
    first = detail[: detail.index("More: data")]
    assert {"--data", "--label", "--minutes", "--epochs", "--offset", "--out", "--resume"} <= set(first.split())
    assert sum(word.startswith("--") for word in first[first.index("Options") :].split()) <= 20


def test_importing_lipscale_is_quick_and_touches_nothing():
    code = "import sys, lipscale.cli; assert not {'torch', 'sklearn', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
    names = "import lipscale; [getattr(lipscale, n) for n in lipscale.__all__]; lipscale.models.resnet18"
    assert subprocess.run([sys.executable, "-c", names], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """A folder with things that are wrong."""
    folder = tmp_path_factory.mktemp("bad")
    x, y = np.random.default_rng(0).random((60, 5)), np.arange(60) % 2
    np.savez(folder / "one.npz", x=x, y=y * 0)
    np.savez(folder / "nan.npz", x=np.where(x > 0.9, np.nan, x), y=y)
    np.savez(folder / "labels.npz", x=x, y=y, classes=["only"])
    np.savez(folder / "table.npz", x=x, y=y)
    np.savez(folder / "rare.npz", x=x, y=np.where(np.arange(60) < 1, 1, 0))
    (folder / "typo.yaml").write_text("lipshitz: 2\n")
    (folder / "twice.yaml").write_text("seed: 2\nseed: 3\n")
    (folder / "true.yaml").write_text("seed: true\n")
    (folder / "typo.csv").write_text("a,y\n1,p\n2,q\n3;p\n")
    for name in ("cat", "dog"):
        (folder / "pictures" / name).mkdir(parents=True)
        (folder / "pictures" / name / "1.png").write_bytes(b"no picture")
    (folder / "exists").mkdir()
    (folder / "exists" / "file").write_text("mine")
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--data", "cifer10"), "did you mean 'cifar10'?"),
        (("train", "--data", "cifar10", "--data-dir", "{bad}"), "cifar-10-binary.tar.gz"),
        (("train", "--model", "resnet"), "did you mean 'resnet18'?"),
        (("train", "--method", "lst"), "did you mean 'list'?"),
        (("train", "{bad}/typo.yaml"), "did you mean 'lipschitz'?"),
        (("train", "{bad}/none.yaml"), "none.yaml"),
        (("train", "--epochs", "0"), "--epochs"),
        (("train", "--epochs", "ten"), "--epochs"),
        (("train", "--lipschitz", "-1"), "--lipschitz"),
        (("train", "--limit", "3"), "limit"),
        (("train", "--limit", "100000"), "limit"),
        (("train", "--width", "7"), "even width, got 7"),
        (("train", "--batch-size", "5000"), "--batch-size 5000"),
        (("train", "--device", "tpu"), "use cpu as --device"),
        (("train", "--out", "{bad}/exists"), "exists"),
        (("train", "--resume", "{bad}"), "no run folder"),
        (("train", "--resume", "{bad}", "--seed", "1"), "keeps its settings"),
        (("train", "--recipe", "x"), "list-cifar10"),
        (("train", "--class-weights", "1,2,3"), "--class-weights: expected 10 numbers, one a class, got 3"),
        (("train", "--data", "{bad}/one.npz"), "class"),
        (("train", "--data", "{bad}/nan.npz"), "NaN"),
        (("train", "--data", "{bad}/labels.npz"), "class"),
        (("train", "--data", "{bad}/rare.npz"), "calibration sample"),
        (
            ("train", "--data", "{bad}/table.npz", "--batch-size", "8", "--model", "convnet"),
            "use mlp as --model",
        ),
        (("evaluate", "{bad}"), "no run folder"),
        (("evaluate", "{bad}", "--epsilon", "x"), "--epsilon"),
        (("predict", "{bad}"), "no run folder"),
        (("train", "--sed", "1"), "No such option: --sed"),
        (("trian",), "No such command 'trian'"),
        (("predict",), "Missing argument 'RUN'"),
        (("audit", "{bad}", "--samples", "few"), "--samples"),
        (("train", "{bad}/twice.yaml"), "'seed' is given twice"),
        (("train", "{bad}/true.yaml"), "yes and no"),
        (("train", "--data", "{bad}/typo.csv", "--label", "y"), "typo.csv, line 4: expected 2 cells"),
        (("train", "--data", "{bad}/typo.csv"), "Give --label, one of a, y"),
        (("train", "--data", "{bad}/typo.csv", "--label", "z"), "no column 'z'"),
        (("train", "--data", "{bad}/pictures"), "cat/1.png as a picture"),
        (("train", "--data", "{bad}/exists"), "holds 0 class folders"),
        (("train", "--data", "{bad}/none"), "does not exist"),
        (("data", "get", "imagenet"), "to be had: mnist"),
        (("data", "get", "mnist", "--mirror", "file:///etc", "--data-dir", "{bad}/new"), "http"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_two(bad, arguments, message):
    done = lipscale(*(a.format(bad=bad) for a in arguments), cwd=bad, check=False)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (bad / "runs").exists()
    assert (bad / "exists" / "file").read_text() == "mine"


@pytest.mark.long
def test_the_example_of_an_own_loop_ends_calibrated_and_certified():
    real_folder("fashion-mnist")
    example = Path(__file__).parents[2] / "examples" / "own_loop.py"
    assert len(example.read_text().splitlines()) <= 45
    done = subprocess.run([sys.executable, example], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("ECE ")[1].split()[0]) < 0.02
    certified = ast.literal_eval(done.stdout.split("certified accuracy ")[1])
    assert certified["0"] > 0.8
    assert certified["0"] > certified["0.1412"] > 0.3


def test_names_from_files_are_shown_as_text(capsys):
    from lipscale.cli.show import print_predictions
    from lipscale.runs.predict import Prediction

    answer = Prediction("[red]a[/red]", "[/b] \x1b[31mdog", 0.5, 0.1, "pixels", kept={"true_[i]": "[bold]cat"})
    print_predictions([answer])
    shown = capsys.readouterr().out
    assert "[red]a[/red]" in shown
    assert "[/b]" in shown
    assert "[bold]cat" in shown
    assert "true_[i]" in shown
    assert "\x1b[31m" not in shown


def test_a_folder_whose_name_is_no_text_is_refused_before_the_training(tmp_path):
    script = Path(sys.executable).with_name("lipscale")
    name = bytes(tmp_path) + b"/run-\xff"
    done = subprocess.run([script, "train", *QUICK, "--out", name], capture_output=True)
    assert done.returncode == 2
    assert b"UTF-8" in done.stderr
    assert not list(tmp_path.iterdir())


def test_flags_that_name_several_columns_may_be_repeated():
    train = typer.main.get_command(app).commands["train"]
    flags = train.make_context("train", ["--drop", "id", "--drop", "zip, name", "--seed", "3"]).params
    given, named = given_settings({key: flags[key] for key in Settings.model_fields})
    assert Settings.checked(given).drop == ("id", "zip", "name")
    assert (given.keys(), named["drop"]) == ({"drop", "seed"}, "--drop")
    with pytest.raises(UserError, match="give --epochs or --minutes, not both"):  # train and compare alike
        given_settings({"epochs": "3", "minutes": "1"})
    predict = typer.main.get_command(app).commands["predict"]
    assert predict.make_context("predict", ["RUN", "--keep", "id", "--keep", "zip"]).params["keep"] == ["id", "zip"]


def test_the_first_sight_fits_into_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    known = {"classes": ("fraud", "legit"), "confusion": ((7, 3), (90, 900)), "recall": (0.7, 0.9)}
    print_first_sight(made_up_metrics(**known, majority_rate=0.99, balanced_accuracy=0.8), weighted=False)
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert len(lines[3:]) == 5, lines  # one for each number
