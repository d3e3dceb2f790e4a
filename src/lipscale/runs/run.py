"""A run: from settings to a folder that is enough by itself, and back."""

import dataclasses
import json
import logging
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from lipscale.runs.assembly import box_of, build_network, new_training, pick_device, read_data, resolve
from lipscale.runs.attack_cache import KeptTensors
from lipscale.certificates import certify
from lipscale.runs.settings import Settings, as_yaml, replace
from lipscale.data import (
    Dataset,
    Preprocessing,
    Samples,
    as_input,
)
from lipscale.errors import DivergedError, StoppedError, UnusableError, UnwritableError, UserError
from lipscale.runs.evaluation import Evaluation, Metrics, evaluate
from lipscale.runs.lock import locked
from lipscale.certificates.robustness import Attack, Robustness, attack_samples, measure_robustness
from lipscale.runs.folder import (
    ATTACKS,
    CHECKPOINT,
    DATA,
    HISTORY,
    METRICS,
    MODEL,
    PREDICTIONS,
    ROBUSTNESS,
    SETTINGS,
    VERSIONS,
    clear,
    history_lines,
    new_folder,
    read_json,
    require_empty,
    stored_attacks,
    stored_data,
    stored_settings,
    strict,
    write_json,
)
from lipscale.training.algorithm import Epoch, ListTraining
from lipscale.training.checkpoint import (
    append_durably,
    load_network,
    load_tensors,
    load_training,
    save_tensors,
    save_training,
    write_atomically,
)

log = logging.getLogger("lipscale")


@dataclass(frozen=True)
class Run:
    """A finished run: the network in evaluation mode and all that is needed to use it."""

    folder: Path
    settings: Settings
    net: nn.Module
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    metrics: Metrics


def train(
    settings: Settings,
    *,
    on_start: Callable[[Path, Settings], None] = lambda folder, settings: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Train, evaluate and write a run folder; `on_start` and `on_epoch` watch it happen.

    `should_stop` is asked after every batch; a yes saves the state and raises StoppedError.
    """
    dataset, preprocessing = read_data(settings)
    settings = resolve(settings, dataset, preprocessing)
    training = new_training(settings, dataset, preprocessing)
    about = {
        "name": dataset.name,
        "classes": dataset.classes,
        "digest": _digest(dataset),
        "preprocessing": asdict(preprocessing),
    }
    folder = new_folder(settings)  # only now: a run that cannot start leaves nothing behind
    with locked(folder):
        require_empty(folder)
        try:
            write_json(folder / DATA, about)
            write_json(folder / VERSIONS, _versions(training.net))
            # last: with its settings the folder is a run that can be resumed
            write_atomically(folder / SETTINGS, as_yaml(replace(settings, out=None)).encode())
        except UnwritableError:
            clear(folder)
            raise
        on_start(folder, settings)
        training.should_stop = should_stop
        with _saying_how_to_go_on(folder):
            return _train_and_finish(folder, training, dataset.test, on_epoch)


def resume(
    folder: Path,
    *,
    on_start: Callable[[Path, Settings], None] = lambda folder, settings: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    should_stop: Callable[[], bool] = lambda: False,
    data_dir: Path | None = None,
) -> Run:
    """Continue a run that was stopped, to the same numbers as if it had not been; a finished one is only loaded."""
    settings = stored_settings(folder)
    if (folder / METRICS).exists() and (folder / MODEL).exists():
        return load(folder)
    with locked(folder):
        classes, stored, digest = stored_data(folder)
        dataset, preprocessing = read_data(settings, stored=stored, classes=classes, data_dir=data_dir)
        training = new_training(settings, dataset, preprocessing)
        done = 0
        if (folder / CHECKPOINT).exists():
            load_training(folder / CHECKPOINT, training)
            done = training.phase1_epochs + training.phase2_epochs
        changed = [part for part, found in _digest(dataset).items() if digest and digest.get(part) != found]
        if changed:
            raise UnusableError(
                f"the {' and '.join(changed)} data of {folder} are not what they were when it was started: "
                f"put the old ones back, or start a new run"
            )
        # an epoch is written to the history before its checkpoint: lines beyond the checkpoint are done again
        lines = history_lines(folder / HISTORY)[:done]
        write_atomically(folder / HISTORY, "".join(line + "\n" for line in lines).encode())
        on_start(folder, settings)
        training.should_stop = should_stop
        with _saying_how_to_go_on(folder):
            return _train_and_finish(folder, training, dataset.test, on_epoch)


def read_results(folder: Path) -> tuple[Settings, Metrics, tuple[str, ...], Preprocessing]:
    """What a finished run's small files tell: settings, metrics, classes, preprocessing."""
    settings = stored_settings(folder)
    for name in (METRICS, MODEL):
        if not (folder / name).exists():
            raise UserError(f"{folder} is not finished ({name} is missing): lipscale train --resume {folder}")
    try:
        metrics = TypeAdapter(Metrics).validate_python(read_json(folder / METRICS))
    except ValidationError as error:
        reason = f"{error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}"
        raise UnusableError(f"{folder / METRICS} is damaged ({reason}): remove it and resume the run") from error
    classes, preprocessing, _ = stored_data(folder)
    return settings, metrics, classes, preprocessing


def load(folder: str | Path, *, device: str = "auto") -> Run:
    """A finished run, from its folder alone."""
    folder = Path(folder)
    settings, metrics, classes, preprocessing = read_results(folder)
    net = build_network(settings, len(classes), preprocessing)
    tensors, _ = load_tensors(folder / MODEL)
    load_network(net, tensors, folder / MODEL)
    return Run(folder, settings, net.eval().to(pick_device(device)), classes, preprocessing, metrics)


def evaluate_run(
    run: Run, *, data_dir: Path | None = None, epsilons: tuple[float, ...] | None = None
) -> Metrics:
    """The run's metrics, measured again on the test part of its data, and written; `epsilons` adds more radii."""
    measured = evaluate(
        run.net,
        held_out_samples(run, data_dir=data_dir),
        epsilons=sorted({*run.settings.epsilons, *(epsilons or ())}),
        calibration_size=run.metrics.calibration_size,
    )
    metrics = dataclasses.replace(run.metrics, **vars(measured.metrics))
    _save_predictions(run.folder, measured)
    write_json(run.folder / METRICS, asdict(metrics))
    return metrics


def attack_run(
    run: Run,
    attack: Attack,
    *,
    samples: int,
    epsilons: tuple[float, ...] | None = None,
    data_dir: Path | None = None,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Robustness:
    """Attack a subset of the test part; the result is kept in the folder, and so is what a killed attack finished."""
    test = held_out_samples(run, data_dir=data_dir)
    attacked = attack_samples(test, samples, seed=attack.seed)
    result = measure_robustness(
        run.net,
        attacked,
        epsilons=[eps for eps in epsilons or run.settings.epsilons if eps > 0],  # at zero there is nothing to attack
        attack=attack,
        box=box_of(run.preprocessing),
        certificate=certify(run.net, as_input(attacked.inputs)),
        cache=lambda name: KeptTensors(run.folder / ATTACKS / name),
        on_progress=on_progress,
    )
    result = dataclasses.replace(result, test_size=len(test))
    stored = stored_attacks(run.folder)
    kept = stored[attack.name].at if attack.name in stored else {}
    # a quick look at a few samples does not erase what more of them have shown
    rows = {e: row for e, row in result.at.items() if row.samples >= kept.get(e, row).samples}
    stored[attack.name] = dataclasses.replace(result, at={**kept, **rows})
    write_json(run.folder / ROBUSTNESS, {name: asdict(found) for name, found in stored.items()})
    return result


def held_out_samples(run: Run, *, data_dir: Path | None = None) -> Samples:
    """The test part of the run's data as it is today, where its network is; with a warning if it has changed."""
    dataset, _ = read_data(run.settings, stored=run.preprocessing, classes=run.classes, data_dir=data_dir)
    _, _, digest = stored_data(run.folder)
    if digest and digest.get("test") != dataset.test.digest():
        log.warning(f"the test data of {run.folder} are not what they were when it was trained")
    return dataset.test.to(_device_of(run.net))


def _save_predictions(folder: Path, evaluation: Evaluation) -> None:
    tensors = {"logits": evaluation.logits, "labels": evaluation.labels, "radii": evaluation.radii}
    save_tensors(folder / PREDICTIONS, tensors, {})


def first_test_samples(run: Run, count: int, *, data_dir: Path | None = None) -> tuple[Tensor, Tensor]:
    """The first inputs and labels of the test part (all, if it has fewer), as the network takes them."""
    test = held_out_samples(run, data_dir=data_dir)
    return as_input(test.inputs[:count]), test.labels[:count]


@contextmanager
def _saying_how_to_go_on(folder: Path) -> Iterator[None]:
    """A run that is stopped, or cannot write any more, ends with the command that continues it."""
    how = f"go on with: lipscale train --resume {folder}"
    try:
        yield
    except StoppedError as stopped:
        raise StoppedError(f"{stopped}; {how}") from None
    except UnwritableError as error:
        raise UnwritableError(f"{error}; what was saved before is intact: mend that, then {how}") from error


def _train_and_finish(folder: Path, training: ListTraining, test: Samples, on_epoch: Callable[[Epoch], None]) -> Run:
    def finish_epoch(epoch: Epoch) -> None:
        append_durably(folder / HISTORY, json.dumps(strict(asdict(epoch))))
        save_training(folder / CHECKPOINT, training)
        on_epoch(epoch)

    training.on_epoch = finish_epoch
    try:
        training.run()
    except StoppedError:
        save_training(folder / CHECKPOINT, training)
        phase, epoch = (2, training.phase2_epochs) if training.phase2_epochs else (1, training.phase1_epochs)
        raise StoppedError(f"stopped after {epoch} whole epochs of Phase {'I' * phase}, all is saved") from None
    except DivergedError as error:
        last = f"the last good checkpoint is {folder / CHECKPOINT}" if (folder / CHECKPOINT).exists() else ""
        advice = f"try a smaller --learning-rate than {training.settings.learning_rate:g}"
        raise DivergedError("; ".join(filter(None, (str(error), last, advice)))) from None
    net, settings, calibration = training.net.eval(), training.settings, training.calibration
    save_tensors(folder / MODEL, net.state_dict(), {})
    calibration_size = 0 if calibration is None else len(calibration)
    evaluation = evaluate(net, test.to(_device_of(net)), epsilons=settings.epsilons, calibration_size=calibration_size)  # type: ignore[attr-defined]
    _save_predictions(folder, evaluation)
    metrics = Metrics(
        **vars(evaluation.metrics),
        phase1_epochs=training.phase1_epochs,
        phase2_epochs=training.phase2_epochs,
        settled=training.feedback.settled if training.feedback else None,
        advice=training.advice,
        calibration_size=calibration_size,
        train_size=len(training.train),
        seconds=training.seconds,
    )
    write_json(folder / METRICS, asdict(metrics))  # last: its presence says that the run is finished
    return load(folder)


def _digest(dataset: Dataset) -> dict[str, str]:
    """Fingerprints of the data as the network sees them."""
    return {"training": dataset.train.digest(), "test": dataset.test.digest()}


def _versions(net: nn.Module) -> dict[str, Any]:
    packages = ("lipscale", "torch", "numpy", "orthogonium", "deel-torchlip", "schedulefree")
    installed = {distribution.name for distribution in distributions()}
    found = {name: version(name) for name in packages if name in installed}
    return {
        "python": platform.python_version(),
        **found,
        "machine": platform.machine(),
        "device": str(_device_of(net)),
        "threads": torch.get_num_threads(),
    }


def _device_of(net: nn.Module) -> torch.device:
    return next(net.parameters()).device
