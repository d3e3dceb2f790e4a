"""How well a run tells another data set from its own: as it is, under attack, and at worst, by its certificate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from lipscale._random import random_stream
from lipscale.attacks.apgd import apgd
from lipscale.certificates import OutlierScores, attack_samples, epsilon_names, prove
from lipscale.certificates.attacked import BATCH, Progress
from lipscale.certificates.outliers import SCORES, outputs_of
from lipscale.data import as_input
from lipscale.data.foreign import read_foreign
from lipscale.errors import UnsoundError, UserError
from lipscale.metrics.intervals import Interval
from lipscale.metrics.ranking import auc_interval, auc_of, false_positive_rate
from lipscale.runs.assembly import box_of, device_of, read_data
from lipscale.runs.conformal import WITHIN
from lipscale.runs.run import Run, held_out_samples, require_certificate

MEANS = 5000  # training samples, of which the class means of the features are
Both = tuple[Tensor, Tensor]  # of inliers and of outliers


@dataclass(frozen=True)
class Detection:
    """How well a score ranks inliers above outliers."""

    auroc: float
    fpr95: float


@dataclass(frozen=True)
class DetectionAt:
    """The same at one epsilon, at worst: where outliers are attacked, inliers, or both."""

    outliers: Detection
    inliers: Detection
    both: Detection


@dataclass(frozen=True)
class UnderAttack:
    """What attacks on some samples left, beside what is certified on those very samples, and what they were."""

    clean: Detection
    attacked: DetectionAt
    certified: DetectionAt


@dataclass(frozen=True)
class ScoreMeasured:
    """One score: as it is, with the interval of 95 % of its AUROC; and by epsilon, certified and attacked."""

    clean: Detection
    interval: Interval
    certified: dict[str, DetectionAt]
    attacked: dict[str, UnderAttack]


@dataclass(frozen=True)
class OutlierResult:
    """What was measured against another set."""

    against: str
    converted: str  # what was done to its inputs; empty where nothing was
    inliers: int
    outliers: int
    attacked: int  # of either, or all where there are fewer
    seed: int
    scores: dict[str, ScoreMeasured]


def outliers_run(
    run: Run,
    against: str,
    *,
    epsilons: Sequence[float] = (),
    attack_count: int = 200,
    attack_steps: int = 20,
    seed: int = 0,
    data_dir: Path | None = None,
    on_progress: Progress = lambda what, done, total: None,
) -> OutlierResult:
    """Measure how well a run's scores tell the test part of its data from another set.

    Args:
        run: A finished run.
        against: The name of another set, or the path of files or a folder.
        epsilons: Changes of the inputs against which the ranking is certified, and attacked; none needs no certificate.
        attack_count: How many samples of either set are attacked at each epsilon, 0 for none.
        attack_steps: Of APGD on each score.
        seed: Decides on the attacked samples and the attacks.
        data_dir: Where the data sets lie now, if not where they were.
        on_progress: Called with what is being done, how much of it is done, and out of how much.

    Returns:
        AUROC and FPR95 of each score. An attacked score out of its certified range is an UnsoundError.

    Example:
        >>> import lipscale
        >>> from lipscale.runs import outliers_run
        >>> found = outliers_run(lipscale.load("runs/cifar"), "cifar100")  # doctest: +SKIP
        >>> found.scores["energy"].clean.auroc  # doctest: +SKIP
        0.75
    """
    if against == run.settings.data:
        raise UserError(f"`against`: {run.folder} was trained on {against}: name another set")
    if epsilons:
        require_certificate(run)
    device = device_of(run.net)
    foreign, converted = read_foreign(against, run.preprocessing, data_dir=data_dir)
    inputs = as_input(held_out_samples(run, data_dir=data_dir).inputs), foreign.to(device)
    orders = [torch.randperm(len(x), generator=random_stream(seed, "outliers", k)) for k, x in enumerate(inputs)]
    chosen = [order[:attack_count].sort().values.to(device) for order in orders]
    scores = _fitted(run, seed, data_dir)
    clean = _both(scores, inputs)
    found = {name: ScoreMeasured(_detection(of), auc_interval(*of), {}, {}) for name, of in clean.items()}
    for label, epsilon in zip(epsilon_names(epsilons), epsilons, strict=True):
        worst = _worst(scores, inputs, clean, epsilon)
        for k, (name, measured) in enumerate(found.items()):
            measured.certified[label] = _at(clean[name], worst[name])
            if attack_count and epsilon > 0:
                search = partial(_attacked, run, scores, name, epsilon, attack_steps, random_stream(seed, "ood", name))
                moved = search(inputs[0][chosen[0]], -1.0), search(inputs[1][chosen[1]], 1.0)
                few, limits = _pick(clean[name], chosen), _pick(worst[name], chosen)
                _require_sound(moved, limits, name, label)
                measured.attacked[label] = UnderAttack(_detection(few), _at(few, moved), _at(few, limits))
                on_progress(f"attacks at {label}", k + 1, len(found))
    count = max(map(len, chosen)) if any(epsilons) else 0
    return OutlierResult(against, converted, len(inputs[0]), len(inputs[1]), count, seed, found)


def _worst(scores: OutlierScores, inputs: Both, clean: dict[str, Both], epsilon: float) -> dict[str, Both]:
    """By score, the least of inliers and the most of outliers within epsilon."""
    ends = [scores.ranges(x, {name: of[i] for name, of in clean.items()}, epsilon) for i, x in enumerate(inputs)]
    return {name: (ends[0][name][0], ends[1][name][1]) for name in clean}


def _fitted(run: Run, seed: int, data_dir: Path | None) -> OutlierScores:
    """The scores, with class means of some training samples."""
    dataset, _ = read_data(run.settings, stored=run.preprocessing, classes=run.classes, data_dir=data_dir)
    train = attack_samples(dataset.train, MEANS, seed=seed).to(device_of(run.net))
    return OutlierScores.of(prove(run.net, run.preprocessing.input_shape), as_input(train.inputs), train.labels.long())


def _both(scores: OutlierScores, inputs: Both) -> dict[str, Both]:
    inside, outside = map(scores, inputs)
    return {name: (inside[name], outside[name]) for name in SCORES}


def _pick(both: Both, chosen: Sequence[Tensor]) -> Both:
    return both[0][chosen[0]], both[1][chosen[1]]


def _detection(both: Both) -> Detection:
    return Detection(auc_of(*both), false_positive_rate(*both))


def _at(clean: Both, moved: Both) -> DetectionAt:
    """Where scores of outliers have moved, those of inliers, or both."""
    return DetectionAt(*map(_detection, ((clean[0], moved[1]), (moved[0], clean[1]), moved)))


def _attacked(
    run: Run,
    scores: OutlierScores,
    name: str,
    epsilon: float,
    steps: int,
    generator: torch.Generator,
    inputs: Tensor,
    sign: float,
) -> Tensor:
    """The score at the points within epsilon where APGD found it largest (sign 1) or least (-1): (N, ...) -> (N,)."""
    net, score, found = scores.differentiable(), scores.score(name), []
    for x in inputs.split(BATCH):
        radius = torch.full((len(x),), epsilon * WITHIN, dtype=x.dtype, device=x.device)
        objective: Callable[[Tensor], Tensor] = lambda points: sign * score(outputs_of(net, points))  # noqa: E731
        found.append(apgd(objective, x, radius, steps=steps, box=box_of(run.preprocessing), generator=generator))
    moved, still = (scores(points)[name] for points in (torch.cat(found), inputs))
    return torch.where(sign * (moved - still) > 0, moved, still)  # an attack may also leave an input alone


def _require_sound(found: Both, limits: Both, name: str, label: str) -> None:
    """No attacked inlier below its least score, no attacked outlier above its largest one."""
    broken = int((found[0] < limits[0]).sum() + (found[1] > limits[1]).sum())
    if broken:
        raise UnsoundError(
            f"the certified range of the score {name} is broken at epsilon {label} by {broken} attacked samples. "
            "Do not rely on this certificate, and please report it"
        )
