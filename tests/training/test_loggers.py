"""Loggers: told of everything once, also over several sittings, and never in a training's way."""

import json
import math
from dataclasses import asdict

import pytest
import torch
from torch.utils.data import TensorDataset

import lipscale
from conftest import lipscale as command
from lipscale.errors import DivergedError, StoppedError, UserError
from lipscale.runs.folder import CHECKPOINT, HISTORY, MODEL, SETTINGS
from lipscale.training.loggers import Logger, MLflow, TensorBoard, WandB, logger, logger_list, watched
from lipscale.training.loggers.logger import numbers

QUICK = lipscale.Settings(limit=120, model="mlp", width=8, depth=1, epochs=4, phase2_epochs=2, calibration_fraction=0.2)
QUICK = lipscale.replace(QUICK, cross_fit=False, device="cpu", precision="float32")
EPOCHS = 6


class Recorder(Logger):
    """Keeps all that it is told."""

    def __init__(self):
        self.told = []

    def start(self, folder, settings, past):
        self.told.append(("start", len(past)))
        self.folder, self.settings, self.epochs = folder, settings, dict(enumerate(past, 1))

    def epoch(self, number, epoch):
        self.told.append(("epoch", number))
        self.epochs[number] = epoch

    def end(self, results):
        self.told.append(("end", None))
        self.results = results

    def failed(self, error):
        self.told.append(("failed", type(error)))


class Broken(Recorder):
    """Fails at some events."""

    def __init__(self, *events):
        super().__init__()
        for event in events:
            setattr(self, event, self.fail)

    def fail(self, *values):
        self.told.append(("fail", None))
        raise OSError("no\nspace left")


def fit(loggers, **options):
    torch.manual_seed(0)
    data = TensorDataset(torch.rand(60, 4), torch.arange(60) % 2)
    net = lipscale.models.mlp(num_classes=2, input_shape=4, width=4)
    known = {"epochs": 3, "phase2_epochs": 1, "calibration_fraction": 0.2, "cross_fit": False, "progress": False}
    return lipscale.fit(net, data, loggers=loggers, **known, **options)


def after(batches):
    """A wish to stop after so many batches."""
    asked = iter(range(1, 10**6))
    return lambda: next(asked) > batches


def test_a_logger_hears_of_every_epoch_once_also_over_two_sittings(tmp_path):
    whole, first, second = Recorder(), Recorder(), Recorder()
    result = fit([whole])
    assert whole.told == [("start", 0), *(("epoch", n) for n in range(1, 5)), ("end", None)]
    assert [e.phase for e in whole.epochs.values()] == [1, 1, 1, 2]
    assert tuple(whole.epochs.values()) == result.history
    assert whole.results["lipschitz"] == result.lipschitz
    assert whole.settings["epochs"] == 3
    assert whole.folder is None

    with pytest.raises(StoppedError):
        fit([first], checkpoint=tmp_path / "c", should_stop=after(2))
    assert first.told == [("start", 0), ("epoch", 1), ("epoch", 2), ("failed", StoppedError)]
    again = fit([second], checkpoint=tmp_path / "c")
    assert second.told == [("start", 2), ("epoch", 3), ("epoch", 4), ("end", None)]
    assert second.folder == tmp_path
    assert tuple(second.epochs.values()) == again.history
    assert [e.lipschitz for e in again.history] == [e.lipschitz for e in result.history]


@pytest.mark.parametrize("events", [["start"], ["epoch"], ["end"], ["start", "epoch", "end"]])
def test_a_logger_that_fails_is_a_warning_and_changes_nothing(events, caplog):
    broken, sound = Broken(*events), Recorder()
    found, plain = fit([broken, sound]), fit([])
    assert [r.getMessage() for r in caplog.records if "logger" in r.getMessage()] == [
        "the logger Broken failed (OSError: no space left); the training goes on"
    ]
    assert sound.told[-1] == ("end", None)
    for name, tensor in plain.net.state_dict().items():
        assert torch.equal(found.net.state_dict()[name], tensor)
    if "start" in events:  # one that could not start is told nothing more
        assert broken.told == [("fail", None)]
    elif "epoch" in events:  # another may be better the next time
        assert len(broken.told) == 6


def test_a_training_that_fails_says_so_and_keeps_its_error(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(
        "lipscale.training.algorithm.train_epoch", lambda *a, **k: (_ for _ in ()).throw(DivergedError("x"))
    )
    with pytest.raises(DivergedError):
        fit([Broken("failed"), recorder])
    assert recorder.told == [("start", 0), ("failed", DivergedError)]


def test_only_the_first_process_logs(monkeypatch):
    recorder = Recorder()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("RANK", "1")
    with watched([recorder], None, {}, []) as audience:
        audience.end({})
    assert recorder.told == []
    monkeypatch.setenv("RANK", "0")
    with watched([recorder], None, {}, []) as audience:
        audience.end({})
    assert recorder.told == [("start", 0), ("end", None)]


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (["nonsense"], r"unknown logger 'nonsense'; known: tensorboard, mlflow, wandb$"),
        ("tensorboard", r"expected a list of `loggers`, got 'tensorboard': write \['tensorboard'\]"),
        ([Recorder], r"a class, not an object: write Recorder\(\)"),
        ([print], "expected a logger with the methods start, epoch, end, failed, got <built-in"),
    ],
)
def test_what_is_no_logger_is_refused_before_anything_is_trained(wrong, match, tmp_path):
    with pytest.raises(UserError, match=match):
        fit(wrong)
    with pytest.raises(UserError, match=match):
        lipscale.train(lipscale.replace(QUICK, out=tmp_path / "run"), loggers=wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_missing_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr(logger, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the package mlflow: pip install 'lipscale\[mlflow\]'"):
        logger_list(["mlflow"])


def test_without_a_run_folder_the_adapters_want_one(caplog):
    pytest.importorskip("tensorboard")
    fit(["tensorboard"])
    assert "there is no run folder to log to: write TensorBoard('FOLDER')" in caplog.text


def test_numbers_are_what_a_tracker_can_draw():
    values = {"a": 1, "b": None, "c": {"0.5": 0.25, "x": [1]}, "d": "text", "e": True, "f": math.inf}
    assert numbers(values, "test/") == {"test/a": 1, "test/c/0.5": 0.25, "test/e": 1, "test/f": math.inf}


# --- the adapters, read back by the trackers' own means ---


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert "_hparams_/session_start_info" in log.PluginTagToContent("hparams")
    return {tag: [(e.step, e.value) for e in log.Scalars(tag)] for tag in log.Tags()["scalars"]}


def read_mlflow(folder):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parent / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("lipscale").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == folder.name
    assert run.data.params["epochs"] == str(QUICK.epochs)
    return {
        key: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)] for key in run.data.metrics
    }


def read_wandb(folder):
    """The file is LevelDB's log: blocks of 32 KiB of records, each behind a checksum, a length and a kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    content, place, whole, found = path.read_bytes(), 7, b"", {}
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        if left < 7:
            place += left
            continue
        whole, place = whole + content[place + 7 : place + 7 + size], place + 7 + size
        if kind in (1, 4):  # whole, or the last part
            record, whole = Record.FromString(whole), b""
            for item in record.history.item:
                found.setdefault("/".join(item.nested_key), []).append(
                    (record.history.step.num, json.loads(item.value_json))
                )
            for item in record.summary.update:
                name = "/".join(item.nested_key) or item.key
                if name.startswith("test/"):
                    found[name] = [(EPOCHS, json.loads(item.value_json))]
    return found


ADAPTERS = [
    pytest.param("tensorboard", TensorBoard, read_tensorboard, id="tensorboard"),
    pytest.param("mlflow", MLflow, read_mlflow, id="mlflow", marks=pytest.mark.slow),
    pytest.param("wandb", WandB, read_wandb, id="wandb", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "kind", "read"), ADAPTERS)
@pytest.mark.parametrize("begun_with", [True, False], ids=["from the start", "from the second sitting"])
def test_a_tracker_has_every_number_once_whatever_the_sittings(name, kind, read, begun_with, tmp_path, monkeypatch):
    pytest.importorskip(name, reason=f"{name} is an extra")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    settings = lipscale.replace(QUICK, out=tmp_path / "logged")
    with pytest.raises(StoppedError):
        lipscale.train(settings, progress=False, loggers=[name] if begun_with else [], should_stop=after(3))
    run = lipscale.resume(tmp_path / "logged", progress=False, loggers=[] if begun_with else [kind()])
    found = read(run.folder)

    history = [json.loads(line) for line in (run.folder / HISTORY).read_text().splitlines()]
    assert len(history) == EPOCHS
    for key in ("loss", "lipschitz", "train_accuracy", "phase", "seconds"):
        assert [step for step, _ in found[key]] == list(range(1, EPOCHS + 1))
        assert [value for _, value in found[key]] == pytest.approx([epoch[key] for epoch in history])
    assert [step for step, _ in found["temperature"]] == [1, 2, 3, 4]  # there is none in Phase II
    metrics = asdict(run.metrics)
    for key in ("accuracy", "ece", "lipschitz_bound"):
        assert found[f"test/{key}"] == [(EPOCHS, pytest.approx(metrics[key]))]
    assert found["test/certified_accuracy/0.25"] == [(EPOCHS, pytest.approx(metrics["certified_accuracy"]["0.25"]))]


def test_what_is_logged_decides_nothing(tmp_path):
    pytest.importorskip("tensorboard")
    logged = lipscale.train(lipscale.replace(QUICK, out=tmp_path / "logged"), progress=False, loggers=["tensorboard"])
    plain = lipscale.train(lipscale.replace(QUICK, out=tmp_path / "plain"), progress=False)
    for name in (SETTINGS, MODEL):
        assert (logged.folder / name).read_bytes() == (plain.folder / name).read_bytes()
    assert {p.name for p in logged.folder.iterdir()} - {p.name for p in plain.folder.iterdir()} == {"tensorboard"}
    assert (logged.folder / CHECKPOINT).exists()


def test_a_run_whose_tracker_is_not_here_goes_on_without_it(tmp_path, monkeypatch, caplog):
    with pytest.raises(StoppedError):
        lipscale.train(lipscale.replace(QUICK, out=tmp_path / "run"), progress=False, should_stop=after(2))
    (tmp_path / "run" / "wandb").mkdir()
    monkeypatch.setattr(logger, "find_spec", lambda name: None)
    assert lipscale.resume(tmp_path / "run", progress=False).metrics.phase1_epochs == QUICK.epochs
    assert "pip install 'lipscale[wandb]'; the run goes on without it" in caplog.text


@pytest.mark.slow
def test_the_command_logs_and_refuses_in_one_line(tmp_path):
    pytest.importorskip("tensorboard")
    wrong = command("train", "--log", "tensorboard,nonsense", cwd=tmp_path, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr == "lipscale: unknown logger 'nonsense'; known: tensorboard, mlflow, wandb\n"
    assert list(tmp_path.iterdir()) == []
    flags = ("--limit", "120", "--epochs", "4", "--phase2-epochs", "2", "--width", "8", "--out", "run")
    command("train", *flags, "--log", "tensorboard", cwd=tmp_path)
    assert len(read_tensorboard(tmp_path / "run")["loss"]) == EPOCHS
