"""Conformal sets of a run: calibrated on held-out samples, measured on others, attacked, over one split or many."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipscale._random import random_stream
from lipscale.attacks.apgd import apgd
from lipscale.certificates import Certificate, ConformalScore, Proof, epsilon_names, prove
from lipscale.certificates.attacked import BATCH, Progress
from lipscale.certificates.conformal import box_lowest, expected_coverage, misses
from lipscale.certificates.proof import AT_ONCE
from lipscale.data import Samples, as_input
from lipscale.errors import UnsoundError, UserError
from lipscale.metrics.intervals import Interval, exact_interval, mean_interval
from lipscale.runs.assembly import box_of, device_of, read_conformal
from lipscale.runs.run import Run, held_out_samples, require_certificate

OWN_SPLIT, TEST_HALF = "the run's own split", "one half of the test part, measured on the other half"
WITHIN = 1 - 1e-5  # of epsilon: rounding in float32 must not take an attack out of the ball
CURVE, CURVE_POINTS = 1000, 11  # samples and epsilons of the figure


@dataclass(frozen=True)
class SetsMeasured:
    """How often sets hold the true class, with its interval of 95 %, and how large they are."""

    coverage: float
    interval: Interval
    size: float


@dataclass(frozen=True)
class RobustSets:
    """Robust sets at one epsilon, of inputs as they are and as an attack left them; and the plain ones under attack."""

    robust: SetsMeasured
    box_size: float | None  # of the published method on the same inputs; none for aps and raps
    attacked: int  # samples, on average over the splits
    plain_under_attack: SetsMeasured | None
    robust_under_attack: SetsMeasured | None


@dataclass(frozen=True, kw_only=True)
class ConformalResult:
    """What was measured; shares and mean sizes, over several splits their means."""

    alpha: float
    score: ConformalScore
    calibrated_on: str  # which samples
    calibration_size: int
    test_size: int
    splits: int
    seed: int
    threshold: list[float]  # the probability from which on a class is in a set, class by class; none for aps and raps
    plain: SetsMeasured
    expected_coverage: Interval  # what 95 % of all calibrations would show on so many test samples
    at: dict[str, RobustSets]  # by epsilon
    curve: dict[str, tuple[float, ...]]  # of the figure: epsilon, and the size of robust sets and of the box's

    def summary(self) -> dict[str, Any]:
        """The keys that scripts look for, robust ones at the largest epsilon; null where none was asked for."""
        robust = max(self.at.items(), key=lambda item: float(item[0]), default=(None, None))
        measured = robust[1].robust if robust[1] else None
        return {
            "coverage": self.plain.coverage,
            "size": self.plain.size,
            "epsilon": None if robust[0] is None else float(robust[0]),
            "robust_coverage": measured and measured.coverage,
            "robust_size": measured and measured.size,
        }


@dataclass(frozen=True)
class _HeldOut:
    """All samples that trained nothing, their scores, and which of them calibrate and are tested in each split."""

    proof: Proof
    samples: Samples
    certificate: Certificate
    labels: Tensor
    score: ConformalScore
    draws: Tensor | None
    scores: Tensor  # (N, C)
    splits: list[tuple[Tensor, Tensor]]
    quantiles: list[Tensor]  # (C,), split by split

    def measured(self, scores: Tensor, rows: Tensor | None = None) -> SetsMeasured:
        """Sets by these (lowest) scores of all samples, or of some rows: of those that each split tests."""
        place = torch.arange(len(self.labels), device=scores.device)
        if rows is not None:
            place = torch.full_like(place, -1).scatter(0, rows, torch.arange(len(rows), device=rows.device))
        found = []
        for (_, tested), quantiles in zip(self.splits, self.quantiles, strict=True):
            known = tested[place[tested] >= 0]
            found.append((scores[place[known]] <= quantiles, self.labels[known]))
        return _measured([(sets, labels) for sets, labels in found if len(labels)])  # few rows may miss a split

    def some_tested(self, count: int, seed: int) -> Tensor:
        """So many rows to attack, drawn from those that any split tests."""
        tested = torch.cat([rows for _, rows in self.splits]).unique()
        order = torch.randperm(len(tested), generator=random_stream(seed, "conformal attack")).to(tested.device)
        return tested[order[:count]].sort().values

    def some(self, rows: Tensor) -> tuple[Certificate, Tensor | None]:
        """The certificate of some rows, and their draws."""
        whole, draws = self.certificate, self.draws
        some = dataclasses.replace(whole, logits=whole.logits[rows], norms=whole.norms[rows])
        return some, None if draws is None else draws[rows]


def conformal_run(
    run: Run,
    *,
    alpha: float = 0.1,
    epsilons: Sequence[float] = (),
    score: ConformalScore | None = None,
    splits: int = 1,
    attack_samples: int = 200,
    attack_steps: int = 20,
    seed: int = 0,
    data_dir: Path | None = None,
    on_progress: Progress = lambda what, done, total: None,
) -> ConformalResult:
    """Calibrate conformal sets on samples that trained nothing, and measure them on others, attacked ones too.

    Args:
        run: A finished run.
        alpha: How often a set may miss.
        epsilons: The changes that robust sets withstand; none for plain sets alone, which need no certificate.
        score: Which score, by default a threshold; aps and raps are randomised from the seed.
        splits: How many random halves of the test part take their turn.
        attack_samples: How many test samples are attacked at each epsilon, 0 for none.
        attack_steps: Of APGD against the true class's probability.
        seed: Decides on halves, randomisation and attacks.
        data_dir: Where the data sets lie now, if not where they were.
        on_progress: Called with what is being done, how much of it is done, and out of how much.

    Returns:
        Coverage and sizes. A true class that an attack within epsilon takes out of a robust set is an UnsoundError.

    Example:
        >>> import lipscale
        >>> from lipscale.runs import conformal_run
        >>> conformal_run(lipscale.load("runs/digits-mlp-list-1"), alpha=0.05).plain.coverage  # doctest: +SKIP
        0.9611
    """
    if epsilons:
        require_certificate(run)
    score = score or ConformalScore()
    held_out, is_own = _held_out(run, score, alpha, splits=splits, seed=seed, data_dir=data_dir)
    (calibrating, tested), chosen, at = held_out.splits[0], held_out.some_tested(attack_samples, seed), {}
    for name, epsilon in zip(epsilon_names(epsilons), epsilons, strict=True):
        stream, tell = random_stream(seed, "conformal attack", name), partial(on_progress, f"attacks at {name}")
        points = partial(_attacked, run, epsilon=epsilon, steps=attack_steps, generator=stream, tell=tell)
        at[name] = _robust_sets(held_out, epsilon, name, chosen, points)
    thresholds = torch.sigmoid(-torch.stack(held_out.quantiles).mean(0))
    return ConformalResult(
        alpha=alpha,
        score=score,
        calibrated_on=OWN_SPLIT if is_own else TEST_HALF,
        calibration_size=len(calibrating),
        test_size=len(tested),
        splits=splits,
        seed=seed,
        threshold=thresholds.tolist() if score.is_threshold else [],
        plain=held_out.measured(held_out.scores),
        expected_coverage=expected_coverage(len(calibrating), len(tested), alpha),
        at=at,
        curve=_curve(held_out, max(epsilons, default=0.0)),
    )


def _held_out(
    run: Run, score: ConformalScore, alpha: float, *, splits: int, seed: int, data_dir: Path | None
) -> tuple[_HeldOut, bool]:
    """The samples that calibrate and test: the run's own split and its test part, or random halves of the latter."""
    samples, device = held_out_samples(run, data_dir=data_dir), device_of(run.net)
    own = read_conformal(run.settings, stored=run.preprocessing, classes=run.classes, data_dir=data_dir)
    if own is not None and splits > 1:
        raise UserError(f"`splits` {splits}: {run.folder} has a split of its own, only halves of a test part can vary")
    if own is not None:
        samples = own.to(device).join(samples)
    count = len(samples)
    streams = [random_stream(seed, "conformal split", k) for k in range(splits)]
    orders = [torch.randperm(count, generator=g) if own is None else torch.arange(count) for g in streams]
    first = count // 2 if own is None else len(own)
    parts = [(order[:first].to(device), order[first:].to(device)) for order in orders]
    misses(first, alpha)  # says what is too little before anything is computed
    proof = prove(run.net, samples.inputs.shape[1:])
    chunks = [proof(as_input(chunk)) for chunk in samples.chunks(most=AT_ONCE, itemsize=8)]
    logits, norms = (torch.cat([getattr(c, name) for c in chunks]) for name in ("logits", "norms"))
    uniform = torch.rand(count, generator=random_stream(seed, "conformal draws"), dtype=torch.float64).to(device)
    draws, labels = None if score.is_threshold else uniform, samples.labels.long()
    scores = score.of(logits, draws)
    quantiles = [score.quantiles(scores[rows], labels[rows], alpha, run.classes) for rows, _ in parts]
    certificate = dataclasses.replace(chunks[0], logits=logits, norms=norms)
    return _HeldOut(proof, samples, certificate, labels, score, draws, scores, parts, quantiles), own is not None


def _robust_sets(
    held_out: _HeldOut, epsilon: float, name: str, chosen: Tensor, attack: Callable[[Tensor, Tensor], Tensor]
) -> RobustSets:
    """Robust sets at one epsilon, of inputs as they are and of those that are chosen for an attack."""
    score, labels = held_out.score, held_out.labels[chosen]
    robust = held_out.measured(score.lowest(held_out.certificate, epsilon, held_out.draws))
    box = held_out.measured(box_lowest(held_out.certificate, epsilon)).size if score.is_threshold else None
    if len(chosen) == 0:
        return RobustSets(robust, box, 0, None, None)
    attacked = held_out.proof(attack(as_input(held_out.samples.take(chosen).inputs), labels))
    draws = held_out.some(chosen)[1]
    lowest = score.lowest(attacked, epsilon, draws)
    _require_sound(held_out.scores[chosen], lowest, labels, name)
    under_attack = [held_out.measured(scores, chosen) for scores in (score.of(attacked.logits, draws), lowest)]
    count = round(sum(int(torch.isin(chosen, tested).sum()) for _, tested in held_out.splits) / len(held_out.splits))
    return RobustSets(robust, box, count, *under_attack)


def _attacked(
    run: Run,
    inputs: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    steps: int,
    generator: torch.Generator,
    tell: Callable[[int, int], None],
) -> Tensor:
    """Points within epsilon whose true class is as improbable as APGD can make it: the way out of every set."""
    if epsilon == 0:
        return inputs
    found, batches = [], [*zip(inputs.split(BATCH), labels.split(BATCH), strict=True)]
    for k, (x, y) in enumerate(batches):
        own = torch.nn.functional.one_hot(y, len(run.classes)).bool()

        def improbable(points: Tensor, own: Tensor = own) -> Tensor:
            logits = run.net(points)  # minus the log-odds of the true class: no gradient vanishes where p_y is near 1
            return logits.masked_fill(own, -torch.inf).logsumexp(1) - logits[own]

        radius = torch.full((len(x),), epsilon * WITHIN, dtype=x.dtype, device=x.device)
        found.append(apgd(improbable, x, radius, steps=steps, box=box_of(run.preprocessing), generator=generator))
        tell(k + 1, len(batches))
    return torch.cat(found)


def _require_sound(scores: Tensor, lowest: Tensor, labels: Tensor, name: str) -> None:
    """Whatever the quantile: the lowest score at an attacked input is not above the score of the input itself."""
    broken = (lowest > scores).gather(1, labels.unsqueeze(1)).squeeze(1)
    if broken.any():
        raise UnsoundError(
            f"a robust set is broken at epsilon {name}: attacked sample {int(broken.nonzero()[0])} left it "
            f"({int(broken.sum())} such samples). Do not rely on this certificate, and please report it"
        )


def _measured(found: list[tuple[Tensor, Tensor]]) -> SetsMeasured:
    """Coverage and size of sets (N, C) for labels (N,), split by split; of several, means and the mean's interval."""
    hits = [int(sets.gather(1, labels.unsqueeze(1)).sum()) for sets, labels in found]
    shares = [hit / len(labels) for hit, (_, labels) in zip(hits, found, strict=True)]
    size = statistics.fmean(float(sets.sum(1).double().mean()) for sets, _ in found)
    if len(found) == 1:
        return SetsMeasured(shares[0], exact_interval(hits[0], len(found[0][1])), size)
    return SetsMeasured(statistics.fmean(shares), mean_interval(torch.tensor(shares, dtype=torch.float64)), size)


def _curve(held_out: _HeldOut, largest: float) -> dict[str, tuple[float, ...]]:
    """The size of robust sets over epsilon, up to twice the largest one, on some test samples of the first split."""
    if largest == 0:
        return {}
    score, (some, draws) = held_out.score, held_out.some(held_out.splits[0][1][:CURVE])
    epsilons = tuple(2 * largest * i / (CURVE_POINTS - 1) for i in range(CURVE_POINTS))

    def sizes(lowest: Callable[[float], Tensor]) -> tuple[float, ...]:
        return tuple(float((lowest(eps) <= held_out.quantiles[0]).sum(1).double().mean()) for eps in epsilons)

    curve = {"epsilon": epsilons, "size": sizes(lambda eps: score.lowest(some, eps, draws))}
    return curve | ({"box_size": sizes(lambda eps: box_lowest(some, eps))} if score.is_threshold else {})
