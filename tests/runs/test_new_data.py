"""A fraud-like table, class by class: on the test part, on new data of every kind, and with a threshold."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import confusion_matrix

import lipscale
from conftest import lipscale as command
from lipscale.certificates import Attack, Threshold, certify, decided
from lipscale.cli.results import evaluate
from lipscale.errors import UserError
from lipscale.report.verdict import verdict
from lipscale.runs import attack_run, evaluate_run, evaluation_file
from lipscale.runs.predict import predict
from lipscale.settings import Settings
from makers import write_csv, write_folder

HEADER = ("amount", "hour", "verdict")


def fraud_rows(n, seed):
    """Rows of which 1 % are frauds: larger amounts, as a rule."""
    rng = np.random.default_rng(seed)
    fraud = np.arange(n) % 100 == 7
    x = rng.normal(0, 1, (n, 2)) + np.outer(fraud, [1.8, 0.5])
    return [[f"{100 + 40 * a:.3f}", f"{b:.3f}", "fraud" if y else "legit"] for (a, b), y in zip(x, fraud, strict=True)]


def trained(folder, name, **changes):
    quick = {"width": 8, "depth": 1, "epochs": 8, "phase2_epochs": 0, "learning_rate": 0.03, "device": "cpu"}
    own = {"data": str(folder / "fraud.csv"), "label": "verdict", "out": folder / name}
    return lipscale.train(Settings(**own, **quick, **changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("fraud")
    write_csv(base / "fraud.csv", fraud_rows(4000, 0), header=HEADER)
    write_csv(base / "march.csv", fraud_rows(600, 1), header=HEADER)
    return base


@pytest.fixture(scope="module")
def run(folder):
    return trained(folder, "run")


def test_a_network_that_answers_legit_to_everything_is_not_praised(run):
    metrics = run.metrics
    assert metrics.always_answers == "legit"
    assert metrics.accuracy == metrics.majority_rate == 0.99
    assert metrics.balanced_accuracy == 0.5
    assert metrics.recall == (0.0, 1.0)
    assert metrics.certified_recall["0.1412"][0] == 0.0
    assert metrics.auc > 0.8
    sentences = verdict(metrics, run.preprocessing.unit)
    assert sentences[0].startswith("It always answers 'legit'")
    assert not any("correctly" in sentence or "as a share of all" in sentence for sentence in sentences)
    assert any("0.0 % of 'fraud'" in sentence for sentence in sentences)
    assert "`class_weights` balanced" in metrics.advice
    assert "`threshold` 0.01 answers it" in metrics.advice


def test_balanced_weights_find_the_frauds(folder, run):
    balanced = trained(folder, "balanced", class_weights="balanced").metrics
    assert balanced.recall[0] > 0.5
    assert balanced.always_answers is None
    assert balanced.balanced_accuracy > run.metrics.balanced_accuracy + 0.2
    assert balanced.accuracy < balanced.majority_rate
    assert balanced.advice is None or "class_weights" not in balanced.advice


def test_the_advice_is_measured_anew_and_not_piled_up(run):
    assert evaluate_run(run) == run.metrics


def test_older_metrics_load_and_are_completed(run, tmp_path):
    old = shutil.copytree(run.folder, tmp_path / "old")
    new = {"recall", "precision", "confusion", "certified_recall", "auc", "auc_by_class", "average_precision"}
    new |= {"classes", "majority_rate", "balanced_accuracy", "always_answers", "gap_by_class", "ece_by_class"}
    stored = json.loads((old / "metrics.json").read_text())
    assert new <= stored.keys()
    stored = {key: value for key, value in stored.items() if key not in new} | {"advice": "more data"}
    (old / "metrics.json").write_text(json.dumps(stored))
    loaded = lipscale.load(old)
    assert loaded.metrics.recall == ()
    assert "correctly" in verdict(loaded.metrics, "")[0]
    measured = evaluate_run(loaded)
    assert measured.recall == run.metrics.recall
    assert measured.advice == f"more data; {run.metrics.advice}"
    assert evaluate_run(lipscale.load(old)).advice == measured.advice


def test_new_data_are_measured_and_leave_the_run_as_it_is(folder, run):
    before = {path.name: path.read_bytes() for path in run.folder.iterdir() if path.is_file()}
    measured = evaluate_run(run, on=folder / "march.csv")
    rows = torch.tensor([[float(cell) for cell in row[:2]] for row in fraud_rows(600, 1)], dtype=torch.float64)
    mean, std = (torch.tensor(getattr(run.preprocessing, f"column_{name}")) for name in ("mean", "std"))
    logits = run.net(((rows - mean) / std).float())
    truth = [run.classes.index(row[2]) for row in fraud_rows(600, 1)]
    assert np.array_equal(measured.confusion, confusion_matrix(truth, logits.argmax(1)))
    assert measured.test_size == 600
    result = attack_run(run, Attack(steps=3, restarts=1), samples=20, on=folder / "march.csv")
    assert result.test_size == 600
    assert {path.name: path.read_bytes() for path in run.folder.iterdir() if path.is_file()} == before
    kept = json.loads(evaluation_file(run, on=folder / "march.csv").read_text())
    assert kept["recall"] == list(measured.recall)
    assert kept["robustness"]["samples"] == 20


def test_a_threshold_decides_on_answers_and_radii_but_not_on_calibration(run):
    threshold = Threshold.of(run.classes, 0.03, "fraud")
    measured = evaluate_run(run, threshold=threshold)
    assert measured.recall[0] > 0.3
    assert measured.recall[0] == measured.confusion[0][0] / 8
    assert measured.accuracy == pytest.approx((measured.confusion[0][0] + measured.confusion[1][1]) / 800)
    assert measured.certified_accuracy["0.5"] < measured.certified_accuracy["0.1412"] < measured.accuracy
    for key in ("ece", "nll", "calibration_error", "temperature", "auc"):
        assert getattr(measured, key) == getattr(run.metrics, key)
    assert lipscale.load(run.folder).metrics == run.metrics
    x = torch.randn(50, 2)
    answers = predict(run, x, ["x"] * 50, epsilon=0.1, threshold=threshold)
    classes, radii = decided(certify(run.net, x), threshold)
    p = certify(run.net, x).logits.softmax(1)
    for i, answer in enumerate(answers):
        assert answer.label == run.classes[classes[i]] == ("fraud" if p[i, 0] >= 0.03 else "legit")
        assert answer.radius == float(radii[i])
        assert answer.probability == pytest.approx(float(p[i, classes[i]]))
        assert answer.lowest <= answer.probability <= answer.highest


def test_the_command_line_says_it_all(folder, run):
    done = command("evaluate", run.folder, "--on", folder / "march.csv", "--attack", "none")
    for text in ("commonest class", "It always answers 'legit'", "Class by class", "evaluations/march.json"):
        assert text in done.stdout
    assert "--threshold 0.01 answers it" in " ".join(done.stdout.split())
    flags = ("--threshold", "0.03")  # of the rarer class, whatever the alphabet says
    found = json.loads(command("evaluate", run.folder, *flags, "--json", "--attack-samples", "20").stdout)
    assert found["always_answers"] is None
    assert found["robustness"]["accuracy"] < 1
    assert found == json.loads((run.folder / "evaluations" / "test-fraud-from-0.03.json").read_text())
    told = command("predict", run.folder, folder / "march.csv", *flags, "--json")
    assert {row["label"] for row in json.loads(told.stdout)} == {"fraud", "legit"}


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (HEADER, ["1", "2", "theft"], "line 2: column 'verdict' has the unknown label 'theft'; known: fraud, legit"),
        (("amount", "hour", "verdct"), ["1", "2", "fraud"], r"no column 'verdict' \(the label\); did you mean"),
        (("amount", "hours", "verdict"), ["1", "2", "fraud"], "no column 'hour' .*; did you mean 'hours'"),
        (HEADER, ["1", "noon", "fraud"], "line 2: column 'hour' holds numbers but here 'noon'"),
        (HEADER, ["1", "2", ""], "lacks the label"),
    ],
)
def test_bad_tables_are_named(run, tmp_path, header, row, message):
    path = write_csv(tmp_path / "bad.csv", [row], header=header)
    with pytest.raises(UserError, match=message) as caught:
        evaluate_run(run, on=path)
    assert "bad.csv" in str(caught.value)
    assert not (run.folder / "evaluations" / "bad.json").exists()


def test_gaps_and_values_far_outside_are_told(run, tmp_path, caplog):
    rows = [["", "1", "fraud"], ["1e9", "1", "legit"], ["90", "0", "legit"]]
    path = write_csv(tmp_path / "odd.csv", rows, header=HEADER)
    assert evaluate_run(run, on=path).test_size == 3
    assert "odd.csv: 1 values are missing" in caplog.text
    assert "1 of 3 rows lie far outside" in caplog.text


def test_other_data_of_the_same_name_do_not_overwrite_what_was_kept(run, tmp_path):
    paths = []
    for place, rows in (("a", fraud_rows(40, 1)), ("b", fraud_rows(60, 2))):
        (tmp_path / place).mkdir()
        paths.append(write_csv(tmp_path / place / "june.csv", rows, header=HEADER))
    for path in (*paths, paths[0]):
        evaluate_run(run, on=path)
    names = [evaluation_file(run, on=path).name for path in paths]
    assert names == ["june.json", "june-2.json"]
    kept = [json.loads((run.folder / "evaluations" / name).read_text()) for name in names]
    assert [(found["test_size"], found["on"]) for found in kept] == [(40, str(paths[0])), (60, str(paths[1]))]


def test_a_file_name_is_made_of_any_class_name(run):
    odd = dataclasses.replace(run, classes=("a/../\n\0" * 99, "b"))
    file = evaluation_file(odd, threshold=Threshold(0.25, positive=0))
    assert file.parent == run.folder / "evaluations"
    assert len(file.name) < 80
    assert file.name.isprintable()


def test_other_kinds_of_data_are_named(run, tmp_path):
    np.savez(tmp_path / "wide.npz", x=np.zeros((4, 3)), y=np.zeros(4, np.int64))
    np.savez(tmp_path / "three.npz", x=np.zeros((4, 2)), y=np.full(4, 2))
    (tmp_path / "notes.pdf").write_text("")
    (tmp_path / "pictures").mkdir()
    for name, message in {
        "wide.npz": r"takes inputs of shape \(2,\), got \(3,\)",
        "three.npz": "label 2 of sample 0 is not in 0..1",
        "notes.pdf": "expected a .csv or .parquet table",
        "nothing.csv": "does not exist",
        "pictures": "takes no pictures",
    }.items():
        with pytest.raises(UserError, match=message):
            evaluate_run(run, on=tmp_path / name)
    with pytest.raises(UserError, match="give both"):
        evaluate(run.folder, positive="fraud")


def test_arrays_and_pictures_are_read_as_the_runs_own_were(tmp_path):
    write_folder(tmp_path / "pets", n=12)
    quick = {"model": "mlp", "width": 8, "epochs": 1, "phase2_epochs": 0, "method": "standard", "device": "cpu"}
    run = lipscale.train(Settings(data=str(tmp_path / "pets"), **quick, out=tmp_path / "run"))
    new = write_folder(tmp_path / "new", n=3, size=(40, 23), classes=("dog",))  # one class, another size
    measured = evaluate_run(run, on=new)
    assert measured.test_size == 3
    assert (measured.recall[0], measured.auc, measured.majority_rate) == (None, None, 1.0)
    assert json.loads(evaluation_file(run, on=new).read_text())["recall"][0] is None
    side = run.preprocessing.input_shape[1:]
    pixels = [np.asarray(Image.open(p).convert("RGB")) for p in sorted((tmp_path / "pets" / "cat").iterdir())]
    assert pixels[0].shape[:2] == side  # as they are, so that arrays of them are the same inputs
    np.savez(tmp_path / "cats.npz", x=np.stack(pixels).transpose(0, 3, 1, 2), y=np.zeros(12, np.int64))
    shutil.copytree(tmp_path / "pets" / "cat", tmp_path / "only" / "cat")
    arrays, pictures = (dataclasses.asdict(evaluate_run(run, on=tmp_path / name)) for name in ("cats.npz", "only"))
    assert arrays == pictures
    write_folder(tmp_path / "others", classes=("cow", "dog"), n=1)
    with pytest.raises(UserError, match="cow is no class of this set; known: cat, dog"):
        evaluate_run(run, on=tmp_path / "others")
    np.savez(tmp_path / "small.npz", x=np.zeros((4, 3, 5, 5), np.uint8), y=np.zeros(4, np.int64))
    with pytest.raises(UserError, match=r"takes inputs of shape \(3, 10, 12\), got \(3, 5, 5\)"):
        evaluate_run(run, on=tmp_path / "small.npz")
