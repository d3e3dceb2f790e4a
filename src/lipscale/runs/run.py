"""A finished run, from its folder alone: loaded, measured again, attacked."""

import dataclasses
import logging
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipscale._files import load_tensors, save_tensors
from lipscale.certificates import Threshold, prove
from lipscale.certificates.robustness import Attack, Robustness, attack_samples, measure_robustness
from lipscale.data import Preprocessing, Samples, as_input, read_labelled
from lipscale.data.input_files import read_rows
from lipscale.errors import UnusableError, UserError
from lipscale.runs import folder as files
from lipscale.runs.assembly import box_of, build_network, device_of, pick_device, read_data
from lipscale.runs.attack_cache import KeptTensors
from lipscale.runs.evaluation import Evaluation, Metrics, advised, evaluate
from lipscale.runs.headline import first_numbers, headline
from lipscale.runs.lock import locked
from lipscale.runs.notebook import as_html
from lipscale.settings import Settings
from lipscale.training.checkpoint import load_network
from lipscale.training.defaults import is_small
from lipscale.training.hardware import one_thread

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

    def __repr__(self) -> str:
        said = first_numbers(self.metrics)["accuracy"].value
        return f"Run({str(self.folder)!r}: {headline(self.metrics).text}; accuracy {said})"

    def _repr_html_(self) -> str:
        """What a notebook shows of it: the verdict, five numbers and the reliability diagram."""
        try:
            kept = load_tensors(self.folder / files.PREDICTIONS)[0]
        except UserError:  # lost or damaged: the numbers are still there
            kept = {}
        return as_html(str(self.folder), self.metrics, kept.get("logits"), kept.get("labels"))

    def predict_proba(self, rows: Any) -> np.ndarray:
        """The probability of every class, from raw inputs.

        Args:
            rows: Raw values as they stand in your files, never standardised or scaled ones: a DataFrame (of pandas,
                polars or Arrow; columns in any order, others among them), an array or tensor (N, ...), a picture of
                Pillow's or a list of them, or the paths of files that `lipscale predict` takes.

        Returns:
            (N, C) in float64, the classes in the order of `run.classes`; every row sums to 1.

        Example:
            >>> import lipscale
            >>> run = lipscale.load("runs/cancer")  # doctest: +SKIP
            >>> run.predict_proba("examples/breast-cancer-new.csv").shape  # doctest: +SKIP
            (20, 2)
        """
        inputs = read_rows(rows, self.preprocessing)
        certificate = prove(self.net, inputs.shape[1:])(inputs.to(device_of(self.net)))
        return torch.softmax(certificate.logits, 1).cpu().numpy()

    def predict(self, rows: Any) -> np.ndarray:
        """The names of the classes, from raw inputs.

        Args:
            rows: As for `predict_proba`.

        Returns:
            (N,), the most probable class of each.

        Example:
            >>> import lipscale
            >>> lipscale.load("runs/cancer").predict("examples/breast-cancer-new.csv")[0]  # doctest: +SKIP
            'malignant'
        """
        return np.array(self.classes)[self.predict_proba(rows).argmax(1)]


def load(folder: str | Path, *, device: str | None = None) -> Run:
    """A finished run, from its folder alone.

    Args:
        folder: The run folder that `train` wrote.
        device: Where the network goes, such as "cpu"; left out, where the settings of the run say.

    Returns:
        The run, its network in evaluation mode.

    Example:
        >>> import lipscale
        >>> run = lipscale.load("runs/digits-mlp-list-1")  # doctest: +SKIP
        >>> run.metrics.accuracy  # doctest: +SKIP
        0.9917
    """
    folder = Path(folder)
    settings, metrics, classes, preprocessing = read_results(folder)
    net = build_network(settings, len(classes), preprocessing)
    tensors, trained_with = load_tensors(folder / files.MODEL)
    if changed := [name for name, digest in files.fingerprints(folder).items() if trained_with.get(name) != digest]:
        problem = f"is not what the network of {files.MODEL} was trained with"
        raise UnusableError(f"{' and '.join(changed)} of {folder} {problem}: put the old one back")
    load_network(net, tensors, folder / files.MODEL)
    net = net.eval().to(pick_device(device or settings.device))
    return Run(folder, settings, net, classes, preprocessing, metrics)


def read_results(folder: Path) -> tuple[Settings, Metrics, tuple[str, ...], Preprocessing]:
    """What a finished run's small files tell: settings, metrics, classes, preprocessing."""
    settings, again = files.stored_settings(folder), f"go on with lipscale.resume('{folder}')"
    for name in (files.METRICS, files.MODEL):
        if not (folder / name).exists():
            raise UserError(f"{folder} is not finished ({name} is missing): {again}")
    metrics = files.read_json(folder / files.METRICS, Metrics, way_out=f"remove it and {again}")
    about = files.read_json(folder / files.DATA, files.StoredData)
    return settings, metrics, about.classes, about.preprocessing


def evaluate_run(
    run: Run,
    *,
    on: str | Path | None = None,
    threshold: Threshold | None = None,
    data_dir: Path | None = None,
    epsilons: tuple[float, ...] | None = None,
) -> Metrics:
    """The run's metrics, measured again on the test part of its data, or on new data, and written.

    Args:
        run: A finished run.
        on: New labelled data: a table, a folder of class folders or an .npz file, as the run was trained on.
        threshold: From which probability on the positive one of two classes is answered.
        data_dir: Where the data sets lie now, if not where they were.
        epsilons: Radii to certify beside the run's own.

    Returns:
        The metrics. They replace those in metrics.json; with `on` or a threshold, metrics.json stays and they go where
        `evaluation_file` says.

    Example:
        >>> import lipscale
        >>> from lipscale.runs import evaluate_run
        >>> evaluate_run(lipscale.load("runs/fraud"), on="march.csv").recall  # doctest: +SKIP
        (0.9993, 0.6129)
    """
    measured = evaluate(
        run.net,
        labelled_samples(run, on, data_dir=data_dir),
        epsilons=sorted({*run.settings.epsilons, *(epsilons or ())}),
        calibration_size=run.metrics.calibration_size,
        tolerance=run.settings.calibration_tolerance,
        classes=run.classes,
        threshold=threshold,
    )
    weighted = run.settings.class_weights != "none"
    about_classes = advised(None, run.metrics, weighted=weighted) or ""  # measured then: now it may be something else
    about_training = (run.metrics.advice or "").removesuffix(about_classes).removesuffix("; ")
    advice = advised(about_training, measured.metrics, weighted=weighted)
    metrics = dataclasses.replace(run.metrics, **vars(measured.metrics), advice=advice)
    if file := evaluation_file(run, on=on, threshold=threshold):
        file.parent.mkdir(exist_ok=True)
        files.write_json(file, asdict(metrics) | ({} if on is None else {"on": _place(on)}))
    else:
        save_predictions(run.folder, measured)
        files.write_json(run.folder / files.METRICS, asdict(metrics))
    return metrics


def evaluation_file(run: Run, *, on: str | Path | None = None, threshold: Threshold | None = None) -> Path | None:
    """Where what was measured on new data, or with a threshold, is kept; none for the run's own metrics.json.

    Other data of the same name get a number: NAME-2.json.
    """
    if on is None and threshold is None:
        return None
    stem = "test" if on is None else Path(on).resolve().stem
    if threshold is not None:
        name = re.sub(r"[^\w.-]+", "_", run.classes[threshold.positive])[:40]  # whatever a class is called
        stem = f"{stem}-{name}-from-{threshold.probability:g}"
    names = (f"{stem}{f'-{number}' if number > 1 else ''}.json" for number in count(1))
    places = (run.folder / files.EVALUATIONS / name for name in names)
    return next(file for file in places if not file.exists() or files.read_json(file).get("on") == _place(on))


def _place(on: str | Path | None) -> str | None:
    return None if on is None else str(Path(on).resolve())


def attack_run(
    run: Run,
    attack: Attack,
    *,
    samples: int,
    on: str | Path | None = None,
    threshold: Threshold | None = None,
    epsilons: tuple[float, ...] | None = None,
    data_dir: Path | None = None,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Robustness:
    """Attack a subset of the test part, or of new data; the result is kept, and so is what a killed attack finished."""
    test = labelled_samples(run, on, data_dir=data_dir)
    attacked = attack_samples(test, samples, seed=attack.seed)
    with one_thread(when=is_small(run.net, len(attacked))):
        result = measure_robustness(
            run.net,
            attacked,
            epsilons=[eps for eps in epsilons or run.settings.epsilons if eps > 0],  # at zero is nothing to attack
            attack=attack,
            box=box_of(run.preprocessing),
            threshold=threshold,
            cache=lambda name: KeptTensors(run.folder / files.ATTACKS / name),
            on_progress=on_progress,
        )
    result = dataclasses.replace(result, test_size=len(test))
    if file := evaluation_file(run, on=on, threshold=threshold):
        files.write_json(file, files.read_json(file) | {"robustness": asdict(result)})
        return result
    _keep(run, attack, result)
    return result


def _keep(run: Run, attack: Attack, result: Robustness) -> None:
    """Put an attack on the test part into robustness.json."""
    with locked(run.folder, wait=60):  # another attack may end at the same time
        stored = files.stored_attacks(run.folder)
        kept = stored[attack.name].at if attack.name in stored else {}
        # a quick look at a few samples does not erase what more of them have shown
        rows = {e: row for e, row in result.at.items() if row.samples >= kept.get(e, row).samples}
        stored[attack.name] = dataclasses.replace(result, at={**kept, **rows})
        files.write_json(run.folder / files.ROBUSTNESS, {name: asdict(found) for name, found in stored.items()})


def labelled_samples(run: Run, on: str | Path | None, *, data_dir: Path | None = None) -> Samples:
    """New labelled data, read as the run's own were, or else the test part; where the run's network is."""
    if on is None:
        return held_out_samples(run, data_dir=data_dir)
    return read_labelled(Path(on), run.settings, run.preprocessing, run.classes).to(device_of(run.net))


def held_out_samples(run: Run, *, data_dir: Path | None = None) -> Samples:
    """The test part of the run's data as it is today, where its network is; with a warning if it has changed."""
    dataset, _ = read_data(run.settings, stored=run.preprocessing, classes=run.classes, data_dir=data_dir)
    digest = files.read_json(run.folder / files.DATA, files.StoredData).digest
    if digest and digest.get("test") != dataset.test.digest():
        log.warning(f"the test data of {run.folder} are not what they were when it was trained")
    return dataset.test.to(device_of(run.net))


def require_certificate(run: Run) -> None:
    """Refuse an epsilon for a network about which nothing is proven."""
    if not run.metrics.is_certified:
        problem = f"{run.folder} is unconstrained (method {run.settings.method}) and carries no certificate"
        raise UserError(f"{problem}: leave `epsilon` out, or train with method list")


def save_predictions(folder: Path, evaluation: Evaluation) -> None:
    """Keep logits, labels and radii of the test part, for reports."""
    tensors = {"logits": evaluation.logits, "labels": evaluation.labels, "radii": evaluation.radii}
    save_tensors(folder / files.PREDICTIONS, tensors, {})


def first_test_samples(run: Run, count: int, *, data_dir: Path | None = None) -> tuple[Tensor, Tensor]:
    """The first inputs and labels of the test part (all, if it has fewer), as the network takes them."""
    test = held_out_samples(run, data_dir=data_dir)
    return as_input(test.inputs[:count]), test.labels[:count]
