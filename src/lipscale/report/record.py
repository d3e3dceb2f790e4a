"""What a report is about: everything that a run folder tells, and what it does not."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, TypeAdapter
from torch import Tensor

from lipscale import runs
from lipscale._files import load_tensors
from lipscale.certificates.robustness import AttackName
from lipscale.data import Preprocessing, Stored, as_input
from lipscale.errors import UserError
from lipscale.metrics import Predictions
from lipscale.metrics.binned import bins_for
from lipscale.runs.assembly import read_data
from lipscale.runs.folder import HISTORY, PREDICTIONS, ROBUSTNESS
from lipscale.runs.settings import Settings

SHOWN = 8  # hardest and easiest samples, each


@dataclass(frozen=True)
class Answers:
    """What the network said about the test samples."""

    logits: Tensor  # (N, C)
    labels: Tensor  # (N,)
    radii: Tensor  # (N,), certified for the predicted class, right or wrong

    def check(self, classes: int) -> None:
        """Refuse what cannot be the answers of a classifier of so many classes."""
        Predictions.of(self.logits, self.labels)
        if self.logits.shape[1] != classes or self.radii.shape != self.labels.shape:
            raise UserError(f"expected answers for {classes} classes, got {tuple(self.logits.shape)}")

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


@dataclass(frozen=True)
class Shown:
    """A test sample worth looking at."""

    index: int
    image: Tensor | None  # (C, H, W) in [0, 1]; none for a table's row
    truth: str
    predicted: str
    probability: float
    radius: float


@dataclass(frozen=True)
class Facts:
    """A run, as far as its folder tells."""

    name: str
    place: int  # among the runs of the report: its colour, whatever else is missing
    folder: Path
    settings: Settings
    metrics: dict[str, Any]
    unit: str
    classes: tuple[str, ...]
    history: list[dict[str, Any]] = field(default_factory=list)
    robustness: dict[str, Any] = field(default_factory=dict)
    answers: Answers | None = None
    hardest: tuple[Shown, ...] = ()
    easiest: tuple[Shown, ...] = ()
    missing: tuple[str, ...] = ()  # sentences on what this report cannot show, and why


def gather(folders: Sequence[Path], *, data_dir: Path | None = None) -> list[Facts]:
    """The facts of each run; a run that is not finished is an error, a missing part of one is not."""
    names = _short_names(folders)
    return [
        read_facts(folder, name, i, data_dir=data_dir)
        for i, (folder, name) in enumerate(zip(folders, names, strict=True))
    ]


def read_facts(
    folder: Path, name: str, place: int = 0, *, data_dir: Path | None = None, with_samples: bool = True
) -> Facts:
    """The facts of one run; `with_samples` reads its data set for the samples that are worth seeing."""
    settings, metrics, classes, preprocessing = runs.read_results(folder)
    missing: list[str] = []
    history = _history(folder / HISTORY, missing)
    if history and settings.method == "list" and not any(line["phase"] == 2 for line in history):
        missing.append("There was no Phase II: the network was trained without the calibration samples.")
    robustness = _robustness(folder, missing)
    answers: Answers | None = None
    hardest: tuple[Shown, ...] = ()
    easiest: tuple[Shown, ...] = ()
    try:
        answers = Answers(**load_tensors(folder / PREDICTIONS)[0])
        answers.check(len(classes))
    except (UserError, TypeError):
        answers = None
        missing.append(f"The test predictions are missing or damaged: lipscale evaluate {folder} writes them.")
    if answers is not None and with_samples:
        inputs = _inputs(settings, preprocessing, len(answers.labels), data_dir, missing)
        hardest, easiest = _worth_seeing(answers, inputs, classes)
    return Facts(
        name, place, folder, settings, metrics, preprocessing.unit, classes, history, robustness,
        answers, hardest, easiest, tuple(missing),
    )  # fmt: skip


class _Epoch(BaseModel):
    phase: int
    lipschitz: float | None
    temperature: float | None
    temperature_error: float | None = None


class _Errors(BaseModel):
    ece: float


class _Calibration(BaseModel):
    clean: _Errors
    over: _Errors
    under: _Errors
    maximum: _Errors
    certified_confidence: tuple[float, float]


class _Row(BaseModel):
    samples: int
    certified_accuracy: float
    robust_accuracy: float
    interval: tuple[float, float]
    calibration: _Calibration


class _Result(BaseModel):
    attack: AttackName
    at: dict[str, _Row]


_RESULTS = TypeAdapter(dict[AttackName, _Result])


def _history(path: Path, missing: list[str]) -> list[dict[str, Any]]:
    """The epochs; a file that cannot be read is left out, and that is said."""
    try:
        lines = [_Epoch.model_validate_json(line).model_dump() for line in path.read_text().splitlines()]
        if lines and lines[0]["phase"] == 1:
            return lines
    except (OSError, ValueError):
        pass
    missing.append(f"The history of the training ({path.name}) is missing or damaged, so L and T* are not drawn.")
    return []


def _robustness(folder: Path, missing: list[str]) -> dict[str, Any]:
    """The results of attacks, by attack."""
    path = folder / ROBUSTNESS
    if not path.exists():
        missing.append(f"No attack has been made yet: lipscale evaluate {folder}")
        return {}
    try:
        return {name: result.model_dump() for name, result in _RESULTS.validate_json(path.read_bytes()).items()}
    except (OSError, ValueError):
        missing.append(
            f"{path.name} is damaged, so attacks are not shown: lipscale evaluate {folder} makes them again."
        )
        return {}


def _inputs(
    settings: Settings,
    preprocessing: Preprocessing,
    count: int,
    data_dir: Path | None,
    missing: list[str],
) -> Tensor | Stored | None:
    """The test inputs, if the data set is here and still has as many."""
    try:
        inputs = read_data(settings, stored=preprocessing, data_dir=data_dir)[0].test.inputs
    except UserError as error:
        missing.append(f"The samples are not shown, because the data set is not here ({error}).")
        return None
    if len(inputs) != count:
        missing.append(f"The samples are not shown: the data set has {len(inputs)} test samples now, not {count}.")
        return None
    return inputs


def _worth_seeing(
    answers: Answers, inputs: Tensor | Stored | None, classes: tuple[str, ...]
) -> tuple[tuple[Shown, ...], tuple[Shown, ...]]:
    """The hardest: most confident errors first, then the smallest radii. The easiest: the largest radii.

    Without a certificate no radius tells them apart, and the confidence stands in for it.
    """
    radii = answers.radii.clamp(max=1e12) if answers.radii.any() else answers.confidence
    hardness = torch.where(answers.right, -radii, 1 + answers.confidence)
    ease = radii.masked_fill(~answers.right, -torch.inf)

    def shown(i: int) -> Shown:
        image = as_input(inputs[i : i + 1])[0].float() if inputs is not None and inputs.ndim == 4 else None
        truth, answer = classes[int(answers.labels[i])], classes[int(answers.logits[i].argmax())]
        return Shown(i, image, truth, answer, float(answers.confidence[i]), float(answers.radii[i]))

    hardest = map(shown, hardness.topk(min(SHOWN, len(hardness))).indices.tolist())
    easiest = map(shown, ease.topk(min(SHOWN, int(answers.right.sum()))).indices.tolist())
    return tuple(hardest), tuple(easiest)


def _short_names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, or as many parts as tell the runs apart."""
    resolved = [folder.resolve() for folder in folders]
    for length in range(1, 1 + max(len(path.parts) for path in resolved)):
        names = ["/".join(path.parts[-length:]) for path in resolved]
        if len(set(names)) == len(names):
            return names
    raise UserError("the same run is given twice: " + ", ".join(map(str, folders)))
