"""A run as a report sees it: everything that its folder tells, and sentences on what is missing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import Tensor

from lipscale import runs
from lipscale._files import load_tensors
from lipscale.certificates import UncertaintyUnderAttack, certified_accuracy_curve
from lipscale.certificates.robustness import AttackName, Robustness
from lipscale.data import Column, Preprocessing, Stored, read_dataset
from lipscale.errors import UserError
from lipscale.metrics import Predictions
from lipscale.metrics.binned import bins_for
from lipscale.report.samples import Sample, worth_seeing
from lipscale.runs.evaluation import Metrics
from lipscale.runs.folder import HISTORY, PREDICTIONS, ROBUSTNESS, stored_attacks
from lipscale.settings import Settings
from lipscale.training import Epoch

CURVE_POINTS = 400  # no more than a reader can tell apart


@dataclass(frozen=True)
class Answers:
    """What the network said about the test samples."""

    logits: Tensor  # (N, C)
    labels: Tensor  # (N,)
    radii: Tensor  # (N,), certified for the predicted class, right or wrong

    @cached_property
    def confidence(self) -> Tensor:
        """The largest probability of each sample, (N,)."""
        return torch.softmax(self.logits.double(), 1).amax(1)

    @cached_property
    def right(self) -> Tensor:
        """Whether the predicted class is the true one, (N,)."""
        return self.logits.argmax(1).eq(self.labels)

    @property
    def certified(self) -> Tensor:
        """Radii of right answers, and zero for wrong ones, (N,)."""
        return self.radii * self.right

    @property
    def bins(self) -> int:
        """The bins of the reliability diagram."""
        return bins_for(len(self.labels))

    @property
    def largest(self) -> float:
        """The largest certified radius of a right answer; a constant network's has no end."""
        return float(self.certified.clamp(max=1e6).max())

    def certified_at(self, epsilons: Tensor) -> list[float]:
        """Certified accuracy at each epsilon, exactly."""
        proven = self.certified[self.certified > 0].double().sort().values
        return ((len(proven) - torch.searchsorted(proven, epsilons)).double() / len(self.labels)).tolist()

    def selective_at(self, thresholds: Tensor) -> tuple[list[float], list[float | None]]:
        """The share of samples at or above each threshold, and the accuracy among those, exactly; none among none."""
        confidence, order = self.confidence.sort()
        right = torch.cat((self.right[order].double().flip(0).cumsum(0).flip(0), torch.zeros(1)))
        first = torch.searchsorted(confidence, thresholds)
        left = len(confidence) - first
        accuracies = zip(right[first].tolist(), left.tolist(), strict=True)
        return (left.double() / len(confidence)).tolist(), [r / n if n else None for r, n in accuracies]

    def certified_curve(self) -> tuple[list[float], list[float]]:
        """Epsilons from zero to the largest radius, and the certified accuracy at each."""
        steps, shares = certified_accuracy_curve(self.certified.clamp(max=1e6))
        if len(steps) == 0:
            return [0.0, 1.0], [0.0, 0.0]
        kept, values = thinned(steps, shares)
        return [0.0, *kept, kept[-1]], [values[0], *values, 0.0]

    def selective_curves(self) -> list[list[float]]:
        """Thresholds on the confidence, the share of samples at or above each, and the accuracy among those."""
        confidence, order = self.confidence.sort()
        left = torch.arange(len(order), 0, -1, dtype=torch.float64)  # samples at or above the i-th smallest confidence
        accuracy = self.right[order].double().flip(0).cumsum(0).flip(0) / left
        return thinned(confidence, left / len(order), accuracy)


def thinned(*curves: Tensor) -> list[list[float]]:
    """Some of the points, from the first to the last."""
    count = len(curves[0])
    keep = torch.linspace(0, count - 1, min(CURVE_POINTS, count)).round().long()
    return [curve[keep].tolist() for curve in curves]


@dataclass(frozen=True)
class RunRecord:
    """A run, as far as its folder tells."""

    name: str
    index: int  # among the runs of the report; decides its colour
    folder: Path
    settings: Settings
    metrics: Metrics
    unit: str  # of radii
    history: list[Epoch] = field(default_factory=list)
    robustness: dict[AttackName, Robustness] = field(default_factory=dict)
    answers: Answers | None = None
    hardest: tuple[Sample, ...] = ()
    easiest: tuple[Sample, ...] = ()
    missing: tuple[str, ...] = ()  # sentences on what a report cannot show, and why
    uncertainty: UncertaintyUnderAttack | None = None

    @property
    def phase_one(self) -> list[Epoch]:
        """The epochs of Phase I."""
        return [epoch for epoch in self.history if epoch.phase == 1]

    @property
    def constants(self) -> list[float]:
        """L at the start and after every epoch; of an unconstrained network only the setting."""
        first = [] if self.settings.lipschitz is None else [self.settings.lipschitz]
        return [*first, *(epoch.lipschitz for epoch in self.history if epoch.lipschitz is not None)]


def read_records(folders: Sequence[Path], *, data_dir: Path | None = None) -> list[RunRecord]:
    """The records of several runs; a run that is not finished is an error, a missing part of one is not."""
    named = zip(folders, _short_names(folders), strict=True)
    return [read_record(folder, name, i, data_dir=data_dir) for i, (folder, name) in enumerate(named)]


def read_record(
    folder: Path, name: str, index: int = 0, *, data_dir: Path | None = None, with_samples: bool = True
) -> RunRecord:
    """The record of one run; `with_samples` reads its data set for the samples that are worth seeing."""
    settings, metrics, classes, preprocessing = runs.read_results(folder)
    missing: list[str] = []
    history = _history(folder / HISTORY, metrics.is_certified, missing)
    if history and settings.method == "list" and history[-1].phase == 1:
        missing.append("There was no Phase II: the network was trained without the calibration samples.")
    evaluate, robustness = f"lipscale evaluate {folder}", stored_attacks(folder)
    if not robustness and (folder / ROBUSTNESS).exists():
        missing.append(f"{ROBUSTNESS} is damaged, so attacks are not shown: {evaluate} makes them again.")
    elif not robustness:
        missing.append(f"No attack has been made yet: {evaluate}")
    if not metrics.confusion:
        missing.append(f"Nothing was measured class by class when the run was made: {evaluate} does it now.")
    answers = _answers(folder / PREDICTIONS, len(classes))
    samples: tuple[tuple[Sample, ...], tuple[Sample, ...]] = (), ()
    if answers is None:
        missing.append(f"The test predictions are missing or damaged: {evaluate} writes them.")
    elif with_samples:
        inputs, columns = _inputs(settings, preprocessing, len(answers.labels), data_dir, missing)
        samples = worth_seeing(answers.logits, answers.labels, answers.radii, inputs, classes, columns)
    found = (history, robustness, answers, *samples, tuple(missing), runs.stored_uncertainty(folder))
    return RunRecord(name, index, folder, settings, metrics, preprocessing.unit, *found)


def _history(path: Path, has_constant: bool, missing: list[str]) -> list[Epoch]:
    """The epochs; none, and a sentence about it, where the file cannot be read."""
    try:
        epochs = [TypeAdapter(Epoch).validate_json(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if epochs and epochs[0].phase == 1 and all((e.lipschitz is not None) == has_constant for e in epochs):
            return epochs
    except (OSError, ValueError):
        pass
    missing.append(f"The history of the training ({path.name}) is missing or damaged, so L and T* are not drawn.")
    return []


def _answers(path: Path, classes: int) -> Answers | None:
    """The stored answers, if they can be those of a classifier of so many classes."""
    try:
        answers = Answers(**load_tensors(path)[0])
        Predictions.of(answers.logits, answers.labels)
    except (UserError, TypeError):
        return None
    fits = answers.logits.shape[1] == classes and answers.radii.shape == answers.labels.shape
    return answers if fits else None


def _inputs(
    settings: Settings, preprocessing: Preprocessing, count: int, data_dir: Path | None, missing: list[str]
) -> tuple[Tensor | Stored | None, tuple[Column, ...]]:
    """The test inputs as the files have them, and a table's columns, if the set is here and still has as many."""
    try:
        dataset = read_dataset(settings, data_dir, stored=preprocessing)
        inputs = dataset.test.inputs
        if len(inputs) == count:
            return inputs, dataset.columns
        missing.append(f"The samples are not shown: the data set has {len(inputs)} test samples now, not {count}.")
    except UserError as error:
        missing.append(f"The samples are not shown, because the data set is not here ({error}).")
    return None, ()


def _short_names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, or as many parts as tell the runs apart."""
    parts = [folder.resolve().parts for folder in folders]
    if len(set(parts)) < len(parts):
        raise UserError("the same run is given twice: " + ", ".join(map(str, folders)))
    lengths = range(1, 1 + max(map(len, parts)))
    return next(names for n in lengths if len(set(names := ["/".join(p[-n:]) for p in parts])) == len(parts))
