"""From settings to a run folder that is enough by itself; and on from one that was stopped."""

import json
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipscale import _processes as processes
from lipscale._files import append_durably, save_tensors, write_atomically
from lipscale.data import Dataset
from lipscale.errors import LostProcessError, StoppedError, UnusableError, UnwritableError, UserError
from lipscale.runs import folder as files
from lipscale.runs.assembly import Parts, assemble, device_of, read_data, resolve, within_minutes
from lipscale.runs.evaluation import Metrics, advised, evaluate
from lipscale.runs.lock import locked
from lipscale.runs.run import Run, load, save_predictions
from lipscale.runs.settings_file import as_yaml
from lipscale.settings import Settings, replace
from lipscale.training import Epoch, Fit, TrainingSettings, fit
from lipscale.training.checkpoint import saved_history
from lipscale.training.defaults import decided, is_small
from lipscale.training.distributed import require_room, together
from lipscale.training.hardware import one_thread
from lipscale.training.loggers import Logger, kept_loggers, logger_list, watched

PLACES = {"out", "device", "data", "data_dir", "test_data"}  # where things lie: a checkpoint stays good when they move


def train(
    settings: Settings,
    *,
    progress: bool = True,
    on_start: Callable[[Path, Settings], None] = lambda folder, settings: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    should_stop: Callable[[], bool] = lambda: False,
    loggers: Sequence[str | Logger] = (),
) -> Run:
    """Train, evaluate and write a run folder.

    Args:
        settings: Everything that decides the run.
        progress: Show a progress bar.
        on_start: Called with the folder and the settings, every `auto` decided.
        on_epoch: Called after every epoch.
        should_stop: Asked after every batch; a yes saves the state and raises StoppedError.
        loggers: tensorboard, mlflow or wandb, or objects with the methods of `lipscale.training.loggers.Logger`.

    Processes that torchrun has started train together: all call this, and the first one shows, writes and evaluates.

    Returns:
        The finished run.

    Example:
        >>> import lipscale
        >>> run = lipscale.train(lipscale.Settings(data="digits", epochs=10))  # doctest: +SKIP
    """
    started = time.perf_counter()
    told = logger_list(loggers)
    with together(), ExitStack() as held:
        dataset, preprocessing = processes.in_all(lambda: read_data(settings))
        settings = processes.in_all(lambda: resolve(settings, dataset, preprocessing))
        about = {
            "name": dataset.name,
            "classes": dataset.classes,
            "digest": _digest(dataset),
            "preprocessing": asdict(preprocessing),
        }
        processes.require_same("data", about)
        processes.require_same("settings", settings.model_dump_json(exclude=PLACES))
        if settings.minutes is not None:
            settings = within_minutes(settings, dataset, preprocessing, started=started)
        parts = processes.in_all(lambda: assemble(settings, dataset, preprocessing))
        settings = decided(settings, parts.net)
        processes.in_all(lambda: require_room(parts.net, settings, parts.train, parts.calibration))
        # only now: a run that cannot start leaves nothing behind
        folder = processes.by_first(lambda: _begin(settings, about, parts.net, held))
        try:
            processes.in_all(lambda: files.require_shared(folder / files.SETTINGS))
        except UserError:
            processes.by_first(lambda: files.clear(folder))
            raise
        on_start(folder, settings)
        return _fit(folder, settings, parts, progress, on_epoch, should_stop, told)


def _begin(settings: Settings, about: dict[str, Any], net: nn.Module, held: ExitStack) -> Path:
    """A new run folder with its first files, locked for as long as it is held."""
    folder = files.new_folder(settings)
    held.enter_context(locked(folder))
    files.require_empty(folder)
    files.remove_partials(folder)
    try:
        files.write_json(folder / files.DATA, about)
        files.write_json(folder / files.VERSIONS, _versions(net))
        # last: with its settings the folder is a run that can be resumed
        write_atomically(folder / files.SETTINGS, as_yaml(replace(settings, out=None)).encode())
    except UnwritableError:
        files.clear(folder)
        raise
    return folder


def resume(
    folder: str | Path,
    *,
    progress: bool = True,
    on_start: Callable[[Path, Settings], None] = lambda folder, settings: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    should_stop: Callable[[], bool] = lambda: False,
    loggers: Sequence[str | Logger] = (),
    data_dir: Path | None = None,
) -> Run:
    """Continue a run that was stopped, to the same numbers as if it had not been; a finished one is only loaded.

    Args:
        folder: The run folder.
        progress: Show a progress bar.
        on_start: As in `train`.
        on_epoch: As in `train`.
        should_stop: As in `train`.
        loggers: As in `train`; those that the run was begun with by name go on by themselves.
        data_dir: Where the data sets lie now, if not where they were.

    Returns:
        The finished run.

    Example:
        >>> import lipscale
        >>> run = lipscale.resume("runs/digits-mlp-list-1")  # doctest: +SKIP
    """
    folder = Path(folder)
    settings = files.stored_settings(folder)
    given = logger_list(loggers)
    if (folder / files.METRICS).exists() and (folder / files.MODEL).exists():
        return load(folder)
    with together(), ExitStack() as held:
        processes.by_first(lambda: held.enter_context(locked(folder)))
        parts = processes.in_all(lambda: _parts_of(folder, settings, data_dir))
        processes.by_first(lambda: _mend(folder))
        on_start(folder, settings)
        return _fit(folder, settings, parts, progress, on_epoch, should_stop, kept_loggers(folder, given))


def _parts_of(folder: Path, settings: Settings, data_dir: Path | None) -> Parts:
    """What a run that was begun is made of; its data must be what they were."""
    about = files.read_json(folder / files.DATA, files.StoredData)
    dataset, preprocessing = read_data(settings, stored=about.preprocessing, classes=about.classes, data_dir=data_dir)
    parts = assemble(settings, dataset, preprocessing)
    if about.digest not in ({}, _digest(dataset)):
        problem = f"the data of {folder} are not what they were when it was started"
        raise UnusableError(f"{problem}: put the old ones back, or start a new run")
    return parts


def _mend(folder: Path) -> None:
    """Remove what a killed process had begun to write, and add to the history what it had not written yet."""
    files.remove_partials(folder)
    # an epoch is written to the history after its checkpoint
    lines = [f"{_line(epoch)}\n" for epoch in saved_history(folder / files.CHECKPOINT)]
    write_atomically(folder / files.HISTORY, "".join(lines).encode())


def _fit(
    folder: Path,
    settings: Settings,
    parts: Parts,
    progress: bool,
    on_epoch: Callable[[Epoch], None],
    should_stop: Callable[[], bool],
    loggers: Sequence[Logger],
) -> Run:
    """Train from wherever the folder's checkpoint is, then measure, and write both down."""
    again = f"go on with lipscale.resume('{folder}')"
    begun_with = files.fingerprints(folder)
    past = saved_history(folder / files.CHECKPOINT) if loggers else []
    with watched(loggers, folder, settings.model_dump(mode="json"), past) as audience:

        def record(epoch: Epoch) -> None:
            append_durably(folder / files.HISTORY, _line(epoch))
            audience.epoch(epoch)
            on_epoch(epoch)

        try:
            result = fit(
                parts.net,
                parts.train,
                parts.calibration,
                checkpoint=folder / files.CHECKPOINT,
                progress=progress,
                on_epoch=record,
                should_stop=should_stop,
                box=parts.box,
                identity=f"{settings.model_dump_json(exclude=PLACES)} {begun_with[files.DATA]}",
                **settings.model_dump(include=set(TrainingSettings.model_fields)),
            )
            processes.by_first(lambda: _finish(folder, settings, parts, result, begun_with))
        except (StoppedError, LostProcessError) as ended:
            raise type(ended)(f"{ended}; {again}") from None
        except UnwritableError as error:
            raise UnwritableError(f"{error}; what was saved before is intact: mend that, then {again}") from error
        run = load(folder)
        audience.end(asdict(run.metrics))
    return run


def _finish(folder: Path, settings: Settings, parts: Parts, result: Fit, begun_with: dict[str, str]) -> None:
    """Write the network down, then what it is worth."""
    if files.fingerprints(folder) != begun_with:
        raise UnusableError(f"the settings or data.json of {folder} were changed while it was trained: start anew")
    save_tensors(folder / files.MODEL, result.net.state_dict(), begun_with)
    with one_thread(when=is_small(result.net, parts.train.batch_size)):
        evaluation = evaluate(
            result.net,
            parts.test,
            epsilons=settings.epsilons,
            calibration_size=result.calibration_size,
            tolerance=settings.calibration_tolerance,
            classes=parts.classes,
        )
    save_predictions(folder, evaluation)
    metrics = Metrics(
        **vars(evaluation.metrics),
        phase1_epochs=result.epochs_of(1),
        phase2_epochs=result.epochs_of(2),
        settled=result.converged,
        advice=advised(result.advice, evaluation.metrics, weighted=settings.class_weights != "none"),
        calibration_size=result.calibration_size,
        train_size=result.train_size,
        seconds=result.seconds,
        cpu_seconds=result.cpu_seconds,
    )
    files.write_json(folder / files.METRICS, asdict(metrics))  # last: its presence says that the run is finished


def _line(epoch: Epoch) -> str:
    return json.dumps(files.strict(asdict(epoch)))


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
