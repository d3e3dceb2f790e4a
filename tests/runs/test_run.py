"""The run folder: enough by itself, resumable after a real SIGKILL, and hard to fool."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lipscale
from lipscale import losses
from lipscale.data import load_dataset
from lipscale.errors import DivergedError, UserError
from lipscale.runs import evaluate_run, resume
from lipscale.runs.predict import predict, read_inputs
from lipscale.settings import Settings, replace

QUICK = Settings(limit=300, model="convnet", width=4, epochs=4, phase2_epochs=2, batch_size=64, device="cpu")
QUICK = replace(QUICK, calibration_fraction=0.1)
KEYS = {
    *("accuracy", "nll", "brier", "ece", "esce", "temperature", "lipschitz_constant", "lipschitz_bound"),
    *(
        "certified_accuracy",
        "phase1_epochs",
        "phase2_epochs",
        "calibration_size",
        "train_size",
        "test_size",
        "seconds",
    ),
    *("ece_floor", "ece_limit", "calibrated", "intervals", "maximum_ce", "adaptive_ece", "classwise_ece", "smooth_ece"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return lipscale.train(replace(QUICK, out=tmp_path_factory.mktemp("runs") / "run"))


def without_time(metrics):
    return {k: v for k, v in metrics.items() if "seconds" not in k}


def test_the_folder_holds_all_of_it(finished):
    names = {p.name for p in finished.folder.iterdir()}
    assert names == {
        *("settings.yaml", "data.json", "history.jsonl", "checkpoint.safetensors"),
        *("model.safetensors", "predictions.safetensors", "metrics.json", "versions.json"),
        ".lock",
    }
    metrics = json.loads((finished.folder / "metrics.json").read_text())
    assert metrics.keys() >= KEYS
    assert set(metrics["certified_accuracy"]) == {"0.1412", "0.25", "0.5"}
    assert (metrics["phase1_epochs"], metrics["phase2_epochs"]) == (4, 2)
    assert (metrics["train_size"], metrics["calibration_size"], metrics["test_size"]) == (270, 30, 360)
    assert metrics["lipschitz_bound"] == pytest.approx(metrics["lipschitz_constant"], rel=1e-4)
    lines = (finished.folder / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3, 4, 1, 2]


def test_a_moved_folder_loads_and_measures_the_same(finished, tmp_path):
    moved = shutil.copytree(finished.folder, tmp_path / "elsewhere")
    (moved / "checkpoint.safetensors").unlink()  # not needed any more
    run = lipscale.load(moved)
    x = load_dataset("digits").test.inputs[:50]
    assert torch.equal(run.net(x), finished.net(x))
    assert evaluate_run(run) == finished.metrics


def test_predictions_carry_class_probability_and_radius(finished, tmp_path):
    x = load_dataset("digits").test.inputs[:3]
    np.save(tmp_path / "x.npy", x.numpy())
    np.savetxt(tmp_path / "x.csv", x.flatten(1).numpy(), delimiter=",", fmt="%.8f")
    picture = (x[0, 0] * 255).round().to(torch.uint8)
    Image.fromarray(picture.numpy()).save(tmp_path / "x.png")
    paths = [tmp_path / "x.npy", tmp_path / "x.csv", tmp_path / "x.png"]
    inputs, names = read_inputs(paths, finished.preprocessing)
    assert inputs.shape == (7, 1, 8, 8)
    torch.testing.assert_close(inputs[:3], inputs[3:6], atol=1e-6, rtol=0)
    torch.testing.assert_close(inputs[6], inputs[0], atol=2e-3, rtol=0)
    answers = predict(finished, inputs, names)
    logits = finished.net(inputs).detach()
    radii = lipscale.certify(finished.net, inputs).radius()
    for i, answer in enumerate(answers):
        assert answer.label == finished.classes[int(logits[i].argmax())]
        assert answer.probability == pytest.approx(float(logits[i].softmax(0).max()), abs=1e-6)
        assert answer.radius == pytest.approx(float(radii[i]), rel=1e-6)
        assert answer.unit == "pixels in [0, 1]"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "1,2,3\n", "shape"),
        ("b.csv", "0.1," * 63 + "0.5\n" + "x," * 63 + "1\n", "line 2"),
        ("c.csv", ("0.1," * 63 + "0.5\n") + "0.1\n", "line 2"),
        ("d.csv", "9," * 63 + "9\n", r"\[0, 1\]"),
        ("e.csv", "nan," * 63 + "0\n", "NaN"),
        ("f.png", "no picture", "picture"),
        ("g.npy", "no array", "plain array"),
        ("h.npz", "no arrays", "plain array"),
    ],
)
def test_bad_files_are_named(finished, tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        read_inputs([tmp_path / name], finished.preprocessing)
    assert name in str(caught.value)


def test_tables_are_standardised_and_their_unit_is_said(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(300) % 2
    np.savez(tmp_path / "t.npz", x=rng.normal(100 * y[:, None], 40, (300, 3)), y=y)
    run = lipscale.train(
        Settings(data=str(tmp_path / "t.npz"), epochs=20, phase2_epochs=0, width=16, out=tmp_path / "r")
    )
    assert run.settings.model == "mlp"
    inputs, names = read_inputs([_row(tmp_path, "100,100,100")], run.preprocessing)
    answer = predict(lipscale.load(run.folder), inputs, names)[0]
    assert answer.label == "1"
    assert answer.unit == "standard deviations, in feature space"
    assert inputs.abs().max() < 3


def _row(folder, text):
    (folder / "row.csv").write_text(text + "\n")
    return folder / "row.csv"


def test_pictures_are_read_as_they_look(finished, tmp_path):
    black = np.zeros((8, 8), np.uint8)
    Image.fromarray(np.dstack([black] * 4)).save(tmp_path / "clear.png")  # black, but fully transparent
    inputs, _ = read_inputs([tmp_path / "clear.png"], finished.preprocessing)
    assert float(inputs.min()) == 1
    Image.fromarray(black.astype(np.uint16) + 300).save(tmp_path / "deep.png")
    with pytest.raises(UserError, match="more than 8 bits"):
        read_inputs([tmp_path / "deep.png"], finished.preprocessing)
    np.save(tmp_path / "hwc.npy", np.zeros((5, 4, 4, 4)))  # as many numbers as 5 inputs, in another order
    with pytest.raises(UserError, match="for inputs of shape"):
        read_inputs([tmp_path / "hwc.npy"], finished.preprocessing)


def test_evaluation_uses_the_runs_own_preprocessing(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = rng.normal(3 * y[:, None], 1, (200, 4))
    np.savez(tmp_path / "t.npz", x=x, y=y, x_test=x[:50], y_test=y[:50])
    changes = {"epochs": 20, "phase2_epochs": 0, "width": 8, "learning_rate": 0.01}  # enough to beat chance
    quick = Settings(data=str(tmp_path / "t.npz"), **changes, out=tmp_path / "r", device="cpu")
    run = lipscale.train(quick)
    assert run.settings.batch_size == 32
    np.savez(tmp_path / "t.npz", x=100 * x + 7, y=y, x_test=x[:50], y_test=y[:50])  # other training rows today
    assert evaluate_run(run) == run.metrics
    np.savez(tmp_path / "t.npz", x=x[:, :2], y=y)
    with pytest.raises(UserError, match="takes inputs of shape"):
        evaluate_run(run)


def test_a_small_set_needs_no_batch_size(tmp_path):
    run = lipscale.train(replace(QUICK, limit=100, batch_size=None, model="mlp", width=8, epochs=1, out=tmp_path / "r"))
    assert run.settings.batch_size == 90


def test_a_checkpoint_of_another_run_is_refused(finished, tmp_path):
    other = shutil.copytree(finished.folder, tmp_path / "other")
    (other / "metrics.json").unlink()
    text = (other / "settings.yaml").read_text()
    (other / "settings.yaml").write_text(text.replace("offset: 0.0", "offset: 1.0"))
    with pytest.raises(UserError, match="no checkpoint of a run with these settings"):
        resume(other)
    (other / "settings.yaml").write_text(text.replace("seed: 0", "seed: 1"))  # which draws other training data, too
    with pytest.raises(UserError, match="the data of .*other are not what they were"):
        resume(other)


def test_a_lost_model_is_made_again_from_the_checkpoint(finished, tmp_path):
    lost = shutil.copytree(finished.folder, tmp_path / "lost")
    before = (lost / "model.safetensors").read_bytes()
    (lost / "model.safetensors").unlink()
    resume(lost)
    assert (lost / "model.safetensors").read_bytes() == before


def test_fixed_trains_on_everything(tmp_path):
    run = lipscale.train(replace(QUICK, model="mlp", width=16, method="fixed", lipschitz=4.0, out=tmp_path / "r"))
    assert run.metrics.lipschitz_constant == pytest.approx(4.0, rel=1e-5)
    assert (run.metrics.train_size, run.metrics.calibration_size) == (300, 0)
    assert (run.metrics.phase1_epochs, run.metrics.phase2_epochs) == (4, 0)


def test_an_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "precious").write_text("data")
    with pytest.raises(UserError, match="exists"):
        lipscale.train(replace(QUICK, out=tmp_path / "r"))
    assert [p.name for p in (tmp_path / "r").iterdir()] == ["precious"]


def test_a_run_that_cannot_start_leaves_nothing(tmp_path):
    for changes in ({"batch_size": 1000}, {"width": 7}, {"data": "nothing"}, {"device": "cuda:99"}):
        with pytest.raises(UserError):
            lipscale.train(replace(QUICK, out=tmp_path / "r", **changes))
        assert not (tmp_path / "r").exists()


def test_damaged_and_foreign_files_are_named(finished, tmp_path):
    def broken(name, content):
        folder = shutil.copytree(finished.folder, tmp_path / "broken", dirs_exist_ok=True)
        (folder / name).write_bytes(content)
        return folder

    whole = (finished.folder / "model.safetensors").read_bytes()
    foreign = (finished.folder / "checkpoint.safetensors").read_bytes()
    for content in (whole[:-100], whole[:20], b"", b"\x80\x04pickle", foreign):
        with pytest.raises(UserError, match="model.safetensors"):
            lipscale.load(broken("model.safetensors", content))
    with pytest.raises(UserError, match="metrics.json"):
        lipscale.load(broken("metrics.json", b"{"))
    with pytest.raises(UserError, match="no run folder"):
        lipscale.load(tmp_path)
    unfinished = broken("model.safetensors", whole)
    (unfinished / "metrics.json").unlink()
    with pytest.raises(UserError, match=r"go on with lipscale\.resume\('.*broken'\)"):
        lipscale.load(unfinished)
    (unfinished / "checkpoint.safetensors").write_bytes(foreign[:-50])
    with pytest.raises(UserError, match="checkpoint.safetensors is truncated"):
        resume(unfinished)


def test_a_nan_loss_names_the_epoch_and_the_last_good_checkpoint(tmp_path, monkeypatch):
    quick = replace(QUICK, model="mlp", width=16, out=tmp_path / "r")
    with pytest.raises(DivergedError, match="loss became (inf|nan) in epoch 1 of Phase I") as caught:
        lipscale.train(replace(quick, offset=1e39))
    assert "try a smaller `learning_rate` than 0.2" in str(caught.value)
    assert "checkpoint" not in str(caught.value)  # there is no good one yet

    original, calls = losses.offset_cross_entropy, []

    def failing(logits, labels, **options):
        calls.append(1)
        return original(logits, labels, **options) * (float("nan") if len(calls) > 7 else 1)  # 5 batches an epoch

    monkeypatch.setattr(losses, "offset_cross_entropy", failing)
    with pytest.raises(DivergedError, match="loss became nan in epoch 2 of Phase I") as caught:
        lipscale.train(replace(quick, out=tmp_path / "s"))
    assert str(tmp_path / "s" / "checkpoint.safetensors") in str(caught.value)
    monkeypatch.undo()
    assert resume(tmp_path / "s").metrics.phase1_epochs == 4  # and it is good


def start_training(folder: Path, *flags) -> subprocess.Popen:
    script = Path(sys.executable).with_name("lipscale")
    command = [script, "train", "--out", folder, "--limit", "300", "--model", "convnet", "--width", "4"]
    command += ["--batch-size", "64", "--cross-fit", "false", "--device", "cpu", *flags]
    return subprocess.Popen([*map(str, command)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.parametrize("lines", [7, pytest.param(1, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)])
def test_a_killed_run_resumes_to_the_same_numbers(tmp_path, lines):
    """SIGKILL in Phase I, at its end and in Phase II; then the same metrics, history and weights to the bit."""
    flags = ("--epochs", "5", "--phase2-epochs", "5")
    assert start_training(tmp_path / "whole", *flags).wait() == 0
    process = start_training(tmp_path / "killed", *flags)
    history = tmp_path / "killed" / "history.jsonl"
    deadline = time.monotonic() + 120
    while not (history.exists() and history.read_text().count("\n") >= lines):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "metrics.json").exists()
    assert (
        subprocess.run(
            [Path(sys.executable).with_name("lipscale"), "train", "--resume", tmp_path / "killed"],
            capture_output=True,
        ).returncode
        == 0
    )

    def result(name):
        folder = tmp_path / name
        lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        metrics = json.loads((folder / "metrics.json").read_text())
        return (
            without_time(metrics),
            [without_time(line) for line in lines],
            (folder / "model.safetensors").read_bytes(),
        )

    assert result("whole") == result("killed")


def test_a_finished_run_is_not_trained_again(finished):
    before = (finished.folder / "checkpoint.safetensors").stat().st_mtime_ns
    assert resume(finished.folder).metrics == finished.metrics
    assert (finished.folder / "checkpoint.safetensors").stat().st_mtime_ns == before
