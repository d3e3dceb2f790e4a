"""From settings to a run folder that is enough by itself; and on from one that was stopped."""

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipscale._files import append_durably, save_tensors, write_atomically
from lipscale.data import Dataset, Preprocessing, Samples
from lipscale.errors import StoppedError, UnusableError, UnwritableError
from lipscale.runs.assembly import Parts, assemble, box_of, device_of, read_data, resolve, within_minutes
from lipscale.runs.evaluation import Metrics, evaluate
from lipscale.runs.folder import (
    CHECKPOINT,
    DATA,
    HISTORY,
    METRICS,
    MODEL,
    SETTINGS,
    VERSIONS,
    clear,
    fingerprints,
    new_folder,
    remove_partials,
    require_empty,
    stored_data,
    stored_settings,
    strict,
    write_json,
)
from lipscale.runs.lock import locked
from lipscale.runs.run import Run, load, save_predictions
from lipscale.runs.settings_file import as_yaml
from lipscale.settings import Settings, replace
from lipscale.training import Epoch, TrainingSettings, fit
from lipscale.training.checkpoint import saved_history
from lipscale.training.defaults import decided


def train(
    settings: Settings,
    *,
    progress: bool = True,
    on_start: Callable[[Path, Settings], None] = lambda folder, settings: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Train, evaluate and write a run folder.

    Args:
        settings: Everything that decides the run.
        progress: Show a progress bar.
        on_start: Called with the folder and the settings, every `auto` decided.
        on_epoch: Called after every epoch.
        should_stop: Asked after every batch; a yes saves the state and raises StoppedError.

    Returns:
        The finished run.

    Example:
        >>> import lipscale
        >>> run = lipscale.train(lipscale.Settings(data="digits", epochs=10))  # doctest: +SKIP
    """
    started = time.perf_counter()
    dataset, preprocessing = read_data(settings)
    settings = resolve(settings, dataset, preprocessing)
    if settings.minutes is not None:
        settings = within_minutes(settings, dataset, preprocessing, started=started)
    parts = assemble(settings, dataset, preprocessing)
    settings = decided(settings, parts.net)
    about = {
        "name": dataset.name,
        "classes": dataset.classes,
        "digest": _digest(dataset),
        "preprocessing": asdict(preprocessing),
    }
    folder = new_folder(settings)  # only now: a run that cannot start leaves nothing behind
    with locked(folder):
        require_empty(folder)
        remove_partials(folder)
        try:
            write_json(folder / DATA, about)
            write_json(folder / VERSIONS, _versions(parts.net))
            # last: with its settings the folder is a run that can be resumed
            write_atomically(folder / SETTINGS, as_yaml(replace(settings, out=None)).encode())
        except UnwritableError:
            clear(folder)
            raise
        on_start(folder, settings)
        return _fit(folder, settings, parts, preprocessing, dataset.test, progress, on_epoch, should_stop)


def resume(
    folder: str | Path,
    *,
    progress: bool = True,
    on_start: Callable[[Path, Settings], None] = lambda folder, settings: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    should_stop: Callable[[], bool] = lambda: False,
    data_dir: Path | None = None,
) -> Run:
    """Continue a run that was stopped, to the same numbers as if it had not been; a finished one is only loaded.

    Args:
        folder: The run folder.
        progress: Show a progress bar.
        on_start: As in `train`.
        on_epoch: As in `train`.
        should_stop: As in `train`.
        data_dir: Where the data sets lie now, if not where they were.

    Returns:
        The finished run.

    Example:
        >>> import lipscale
        >>> run = lipscale.resume("runs/digits-mlp-list-1")  # doctest: +SKIP
    """
    folder = Path(folder)
    settings = stored_settings(folder)
    if (folder / METRICS).exists() and (folder / MODEL).exists():
        return load(folder)
    with locked(folder):
        remove_partials(folder)
        classes, stored, digest = stored_data(folder)
        dataset, preprocessing = read_data(settings, stored=stored, classes=classes, data_dir=data_dir)
        parts = assemble(settings, dataset, preprocessing)
        # an epoch is written to the history after its checkpoint: a killed process may have left its line out
        lines = [_line(epoch) for epoch in saved_history(folder / CHECKPOINT)]
        changed = [part for part, found in _digest(dataset).items() if digest and digest.get(part) != found]
        if changed:
            raise UnusableError(
                f"the {' and '.join(changed)} data of {folder} are not what they were when it was started: "
                f"put the old ones back, or start a new run"
            )
        write_atomically(folder / HISTORY, "".join(line + "\n" for line in lines).encode())
        on_start(folder, settings)
        return _fit(folder, settings, parts, preprocessing, dataset.test, progress, on_epoch, should_stop)


def _fit(
    folder: Path,
    settings: Settings,
    parts: Parts,
    preprocessing: Preprocessing,
    test: Samples,
    progress: bool,
    on_epoch: Callable[[Epoch], None],
    should_stop: Callable[[], bool],
) -> Run:
    """Train from wherever the folder's checkpoint is, then measure, and write both down."""

    def record(epoch: Epoch) -> None:
        append_durably(folder / HISTORY, _line(epoch))
        on_epoch(epoch)

    again = f"go on with lipscale.resume('{folder}')"
    begun_with = fingerprints(folder)
    try:
        result = fit(
            parts.net,
            parts.train,
            parts.calibration,
            checkpoint=folder / CHECKPOINT,
            progress=progress,
            on_epoch=record,
            should_stop=should_stop,
            box=box_of(preprocessing),
            identity=identity_of(settings, begun_with),
            **settings.model_dump(include=set(TrainingSettings.model_fields)),
        )
        if fingerprints(folder) != begun_with:
            raise UnusableError(f"the settings or data.json of {folder} were changed while it was trained: start anew")
        save_tensors(folder / MODEL, result.net.state_dict(), begun_with)
        on_device = test.to(device_of(result.net))
        evaluation = evaluate(
            result.net,
            on_device,
            epsilons=settings.epsilons,
            calibration_size=result.calibration_size,
            tolerance=settings.calibration_tolerance,
        )
        save_predictions(folder, evaluation)
        metrics = Metrics(
            **vars(evaluation.metrics),
            phase1_epochs=result.epochs_of(1),
            phase2_epochs=result.epochs_of(2),
            settled=result.converged,
            advice=result.advice,
            calibration_size=result.calibration_size,
            train_size=result.train_size,
            seconds=result.seconds,
        )
        write_json(folder / METRICS, asdict(metrics))  # last: its presence says that the run is finished
    except StoppedError as stopped:
        raise StoppedError(f"{stopped}; {again}") from None
    except UnwritableError as error:
        raise UnwritableError(f"{error}; what was saved before is intact: mend that, then {again}") from error
    return load(folder)


def identity_of(settings: Settings, digests: dict[str, str]) -> str:
    """What a run's checkpoint belongs to: all settings but where things lie, and data.json."""
    return f"{settings.model_dump_json(exclude={'out', 'device', 'data', 'data_dir', 'test_data'})} {digests[DATA]}"


def _line(epoch: Epoch) -> str:
    return json.dumps(strict(asdict(epoch)))


def _digest(dataset: Dataset) -> dict[str, str]:
    """Fingerprints of the data as the network sees them."""
    return {"training": dataset.train.digest(), "test": dataset.test.digest()}


def _versions(net: nn.Module) -> dict[str, Any]:
    packages = ("lipscale", "torch", "numpy", "orthogonium", "deel-torchlip", "schedulefree")
    installed = {distribution.name for distribution in distributions()}
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in packages if name in installed},
        "machine": platform.machine(),
        "device": str(device_of(net)),
        "threads": torch.get_num_threads(),
    }
