"""The paper's claims, each with the test that decides it: it holds, it does not hold here, or it is not decided.

Every test names the figures that it rests on. A difference is significant where its 95 % interval over the seeds
(Student's t, unequal variances) lies on one side of zero; with one seed alone none is. A claim is decided on all of its
runs, or not at all.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from statistics import fmean

import torch

from lipscale import runs
from lipscale.bounds.constant import get_lipschitz, set_lipschitz
from lipscale.calibration.feedback import has_settled
from lipscale.calibration.temperature import measure_temperature
from lipscale.certificates import certify
from lipscale.errors import UserError
from lipscale.experiments import recipes
from lipscale.experiments.intervals import crossed_half_width, deviation, half_width, relative_spread
from lipscale.experiments.plan import Row, describe
from lipscale.experiments.profiles import CERTIFIED_AT, Profile
from lipscale.experiments.results import Result, Results
from lipscale.layers.evaluation import evaluation_mode

HOLDS, FAILS, OPEN = "holds", "does not hold here", "not decided"
LARGEST_SPREAD = 0.03  # of L* (Sec. 4.2)
MARGIN = 0.01  # of ECE: what nobody would miss
# the paper's W and tolerance, then each of them halved and doubled
STOPS = ((30, 0.001), (15, 0.001), (60, 0.001), (30, 0.0005), (30, 0.002))


@dataclass(frozen=True)
class Verdict:
    """A claim on a data set, the test that decides it, what was measured, and what follows."""

    claim: str
    place: str  # in the paper
    test: str
    figures: str
    verdict: str
    data: str


Decided = tuple[str, str]  # the verdict, and the figures that it rests on
Claim = Callable[[Profile, Results, str], Verdict]


def _claim(place: str) -> Callable[[Callable[[Profile, Results, str], Decided]], Claim]:
    """Make a claim of the function that decides it; its docstring is the sentence of the paper, then the test."""

    def named(decide: Callable[[Profile, Results, str], Decided]) -> Claim:
        text, test = (" ".join(part.split()).rstrip(".") for part in (inspect.getdoc(decide) or "").split("\n\n"))

        @wraps(decide)
        def claim(profile: Profile, results: Results, data: str) -> Verdict:
            try:
                verdict, figures = decide(profile, results, data)
            except UserError as problem:
                verdict, figures = OPEN, str(problem)
            return Verdict(text, place, test, figures, verdict, data)

        return claim

    return named


def decide_claims(profile: Profile, results: Results) -> list[Verdict]:
    """Every claim on every data set that it is about; one whose runs are missing is not decided."""
    main = (profile.main,)
    about: dict[Claim, Sequence[str]] = {
        ece_is_u_shaped: profile.pair,
        temperature_crosses_once: profile.pair,
        start_does_not_matter: profile.pair,
        retraining_fails: profile.pair,
        offset_front_is_calibrated: profile.pair,
        list_is_best: main,
        phase_two_helps: tuple(profile.sets),
        restart_helps: main,
        less_data_smaller_constant: main,
        stop_is_robust: (describe(recipes.settling(profile).runs[0]),),
        radii_are_invariant: main,
    }
    return [claim(profile, results, data) for claim, sets in about.items() for data in sets]


@_claim("Fig. 1a, App. C")
def ece_is_u_shaped(profile: Profile, results: Results, data: str) -> Decided:
    """ECE over fixed L is U-shaped, ESCE goes from negative to positive.

    at the smallest L every seed's 95 % interval of ESCE is below 0, at the largest above 0; the least mean ECE is at an
    inner L and below every interval of both ends
    """
    rows = _all(results, recipes.constants_figure(profile, data))
    errors = {name: fmean(r.metrics.ece for r in found) for name, found in rows.items()}
    signed = {name: fmean(r.metrics.esce for r in found) for name, found in rows.items()}
    first, *inner, last = rows
    lowest = min(errors, key=errors.__getitem__)
    below = {name: all(r.metrics.intervals.esce[1] < 0 for r in found) for name, found in rows.items()}
    above = {name: all(r.metrics.intervals.esce[0] > 0 for r in found) for name, found in rows.items()}
    ends = [r.metrics.intervals.ece for r in (*rows[first], *rows[last])]
    valley = lowest in inner and all(errors[lowest] < low for low, _ in ends)
    figures = "; ".join(f"{name}: ECE {errors[name]:.3f}, ESCE {signed[name]:+.3f}" for name in rows)
    # the contrary: over-confident at the smallest L, under-confident at the largest
    contrary = above[first] or below[last]
    return HOLDS if below[first] and above[last] and valley else FAILS if contrary else OPEN, figures


@_claim("Prop. 1, Sec. 3.2")
def temperature_crosses_once(profile: Profile, results: Results, data: str) -> Decided:
    """T*(L) crosses 1 once.

    of the constants whose T* on the test set differs significantly from 1, in every seed the smaller ones have T* < 1,
    the larger ones T* > 1
    """
    rows = _all(results, recipes.constants_figure(profile, data))
    changes, once = [], []
    for seed in zip(*rows.values(), strict=True):
        measured = [measure_temperature(r.answers.logits, r.answers.labels) for r in seed]
        # one whose T* may be on either side decides nothing
        sides = [m.value > 1 for m in measured if abs(math.log(m.value)) > 2 * m.error]
        changes.append(sum(a != b for a, b in pairwise(sides)))
        once.append(changes[-1] == 1 and sides[-1])
    figures = "; ".join(f"{name}: T* {fmean(r.metrics.temperature for r in f):.3f}" for name, f in rows.items())
    return _all_or_none(once), f"{figures}; crossings by seed: {', '.join(map(str, changes))}"


@_claim("Sec. 4.2, Fig. 2")
def start_does_not_matter(profile: Profile, results: Results, data: str) -> Decided:
    """L* does not depend on L0.

    (max - min) / mean of L* over L0, in the mean over seeds, is below 3%; it does not hold where that is also above one
    standard error of log T*
    """
    rows = _all(results, recipes.starts_figure(profile, data))
    seeds = [relative_spread([r.constant for r in alike]) for alike in zip(*rows.values(), strict=True)]
    errors = [r.phase_one[-1].temperature_error for found in rows.values() for r in found]
    error = fmean(math.inf if error is None else error for error in errors)
    spread = fmean(seeds)
    means = {name: fmean(r.constant for r in found) for name, found in rows.items()}
    figures = (
        f"{'; '.join(f'{name}: {value:.3f}' for name, value in means.items())}; spread {spread:.1%} (single seeds "
        f"{', '.join(f'{s:.1%}' for s in seeds)}), standard error of log T* {error:.1%}"
    )
    # a spread that the calibration set could not resolve decides nothing
    return HOLDS if spread < LARGEST_SPREAD else FAILS if spread > error else OPEN, figures


@_claim("Sec. 3.2")
def retraining_fails(profile: Profile, results: Results, data: str) -> Decided:
    """retraining at L' = 1 / T* of a 1-Lipschitz network does not calibrate.

    the ECE of every seed is above its one-sided limit (T* is the test set's, the best that it could be)
    """
    found = _seeds(results, recipes.retrained(profile, data))
    ours = _seeds(results, recipes.lipschitz_scaling(profile, 0.0, data))
    figures = "; ".join(f"L' {r.constant:.2f}: ECE {r.metrics.ece:.3f} (limit {r.limit:.3f})" for r in found)
    verdict = _all_or_none([not r.calibrated for r in found])
    return verdict, f"{figures}; LiST's L* {fmean(r.constant for r in ours):.2f}"


@_claim("Sec. 5.2, Fig. 3b")
def offset_front_is_calibrated(profile: Profile, results: Results, data: str) -> Decided:
    """the xi front stays calibrated while CRA rises.

    at every xi most seeds are below the limit of ECE; CRA at 36/255 or at 0.5 is significantly larger at the last xi
    than at the first (paired by seed)
    """
    rows = _all(results, recipes.offsets_figure(profile, data))
    calibrated = {name: sum(r.calibrated for r in found) for name, found in rows.items()}
    stays = all(2 * calibrated[name] > len(found) for name, found in rows.items())
    lost = any(2 * calibrated[name] < len(found) for name, found in rows.items())
    first, *_, last = rows.values()
    gains = {}  # from the first xi to the last, at the two radii that the paper reports
    for epsilon in (CERTIFIED_AT, profile.attack.epsilon):
        differences = [b.certified(epsilon) - a.certified(epsilon) for a, b in zip(first, last, strict=True)]
        gains[f"CRA at {epsilon:.3g}"] = fmean(differences), half_width(differences)
    rises = any(gain > half for gain, half in gains.values())
    falls = all(gain < -half for gain, half in gains.values())
    figures = "; ".join(
        f"{name}: accuracy {fmean(r.metrics.accuracy for r in found):.3f}, ECE "
        f"{fmean(r.metrics.ece for r in found):.3f}, calibrated {calibrated[name]} of {len(found)}, "
        f"CRA {fmean(r.certified(CERTIFIED_AT) for r in found):.3f}"
        for name, found in rows.items()
    )
    verdict = FAILS if lost or falls else HOLDS if stays and rises else OPEN
    return verdict, f"{figures}; from first to last {_in_points(gains)}"


@_claim("Sec. 5.2, Tab. 1")
def list_is_best(profile: Profile, results: Results, data: str) -> Decided:
    """LiST's ECE is at or below that of every fixed L and of every baseline.

    LiST's mean ECE is the lowest, or significantly less than 0.01 above the best other's; it does not hold where any
    other is significantly lower (Bonferroni over all others)
    """
    found = _all(results, recipes.main_table(profile))
    rows = {name: [r.metrics.ece for r in seeds] for name, seeds in found.items()}
    ours = rows.pop("LiST (xi = 0)")
    rows.pop("LiST (xi = 3)", None)
    gaps = {name: fmean(ours) - fmean(eces) for name, eces in rows.items()}
    # as many comparisons as rows: each must be that much surer
    better = [name for name, gap in gaps.items() if gap > half_width(ours, rows[name], comparisons=len(rows))]
    nearest = sorted(rows, key=lambda name: fmean(rows[name]))[:3]
    closest = nearest[0]
    # at or below: the interval of the difference from the best other ends below a margin that nobody would miss
    level = gaps[closest] + half_width(ours, rows[closest]) < MARGIN
    figures = f"LiST {_mean(ours, 4)}; lowest of {len(rows)} others: "
    figures += ", ".join(f"{name} {_mean(rows[name], 4)}" for name in nearest)
    figures += f"; significantly better: {', '.join(better)}" if better else ""
    return FAILS if better else HOLDS if gaps[closest] <= 0 or level else OPEN, figures


@_claim("Sec. 4.3, Tab. 2")
def phase_two_helps(profile: Profile, results: Results, data: str) -> Decided:
    """Phase II (continuing the optimizer) improves accuracy or robustness without losing calibration.

    accuracy or CRA at 36/255 rises significantly (test samples and seeds), and most calibrated seeds stay so; it does
    not hold where one falls significantly and none rises, or where most calibrated seeds are lost
    """
    return _compare_phases(profile, results, data, "II")


@_claim("Sec. 4.3, Tab. 2")
def restart_helps(profile: Profile, results: Results, data: str) -> Decided:
    """Phase II (restarting the optimizer) improves accuracy or robustness without losing calibration.

    accuracy or CRA at 36/255 rises significantly (test samples and seeds), and most calibrated seeds stay so; it does
    not hold where one falls significantly and none rises, or where most calibrated seeds are lost
    """
    return _compare_phases(profile, results, data, "II, restarted")


def _compare_phases(profile: Profile, results: Results, data: str, after: str) -> Decided:
    rows = _all(results, recipes.phases(profile, data))
    first, second = rows["I"], rows[after]
    gains = {}
    scores = {"accuracy": lambda r: r.answers.right, "CRA": lambda r: r.answers.certified >= CERTIFIED_AT}
    for name, score in scores.items():
        # the same test samples under the same seed: differences of single samples, (seeds, N)
        pairs = zip(first, second, strict=True)
        differences = torch.stack([score(b).double() - score(a).double() for a, b in pairs])
        gains[name] = float(differences.mean()), crossed_half_width(differences)
    before, kept = (sum(r.calibrated for r in found) for found in (first, second))
    better = any(gain > half for gain, half in gains.values())
    worse = any(gain < -half for gain, half in gains.values()) and not better
    errors = " -> ".join(f"{fmean(r.metrics.ece for r in found):.4f}" for found in (first, second))
    figures = f"{_in_points(gains)} (± 95 %); ECE {errors}; calibrated {before} -> {kept} of {len(second)}"
    return FAILS if worse or 2 * kept < before else HOLDS if better and before else OPEN, figures


@_claim("Sec. 5.2, Tab. 2")
def less_data_smaller_constant(profile: Profile, results: Results, data: str) -> Decided:
    """L* is smaller with less data.

    L* at the largest N is significantly above L* at the smallest, and no step in between goes significantly the other
    way
    """
    rows = _all(results, recipes.low_data_table(profile))
    constants = {name: [r.constant for r in found] for name, found in rows.items()}
    first, *_, last = constants.values()
    fall, half = fmean(first) - fmean(last), half_width(first, last)
    against = any(fmean(b) - fmean(a) > half_width(a, b) for a, b in pairwise(constants.values()))
    figures = "; ".join(f"{name}: {_mean(values, 2)}" for name, values in constants.items())
    return FAILS if against or fall < -half else HOLDS if fall > half else OPEN, figures


@_claim("App. E")
def stop_is_robust(profile: Profile, results: Results, data: str) -> Decided:
    """the stop is robust to W and its tolerance.

    the stop is replayed on one long run of the paper's rule, with W and the tolerance as in the paper, and each halved
    and doubled; the constants that would be frozen lie within 3%
    """
    (run,) = _seeds(results, recipes.settling(profile))
    constants = run.constants[1 : 1 + len(run.phase_one)]
    frozen, fired = [], []
    for window, tolerance in STOPS:
        for epoch in range(window, len(constants) + 1):
            if has_settled(constants[:epoch], window=window, tolerance=tolerance):
                frozen.append(constants[epoch - 1])
                fired.append(f"W {window}, {tolerance}: epoch {epoch}, L {frozen[-1]:.3f}")
                break
    missed = len(STOPS) - len(frozen)
    spread = math.nan if missed else relative_spread(frozen)
    figures = f"{', '.join(fired)}; not fired within {len(constants)} epochs: {missed}; spread {spread:.1%}"
    return OPEN if missed else HOLDS if spread < LARGEST_SPREAD else FAILS, figures


@_claim("Sec. 3.3")
@torch.no_grad()
def radii_are_invariant(profile: Profile, results: Results, data: str) -> Decided:
    """certified radii are invariant under temperature scaling.

    the network's logits and constant are divided by T = 0.1, 0.5, 2, 10; the radii of 500 test samples change by less
    than 1e-4 of the largest
    """
    (result, *_) = _seeds(results, recipes.lipschitz_scaling(profile))
    run = runs.load(result.folder, device=result.settings.device)
    inputs, _ = runs.first_test_samples(run, 500)
    constant, worst = get_lipschitz(run.net), 0.0
    with evaluation_mode(run.net):
        before = certify(run.net, inputs).radius()
        for temperature in (0.1, 0.5, 2.0, 10.0):
            set_lipschitz(run.net, constant / temperature)
            after = certify(run.net, inputs).radius()
            worst = max(worst, float((after - before).abs().max() / before.max()))
    return HOLDS if worst < 1e-4 else FAILS, f"largest change {worst:.1e}"


def _seeds(results: Results, row: Row) -> list[Result]:
    """All runs of a row, in the order of its seeds, so that those of two rows are pairs."""
    found = results.of(row)
    if len(found) < len(row.runs):
        raise UserError("its runs are not finished")
    return found


def _all(results: Results, rows: Sequence[Row]) -> dict[str, list[Result]]:
    """All runs of all rows, by the row's name."""
    return {row.name: _seeds(results, row) for row in rows}


def _all_or_none(seeds: Sequence[bool]) -> str:
    return HOLDS if all(seeds) else FAILS if not any(seeds) else OPEN


def _mean(values: Sequence[float], digits: int) -> str:
    return f"{fmean(values):.{digits}f} ± {deviation(values):.{digits}f}"


def _in_points(gains: dict[str, tuple[float, float]]) -> str:
    return ", ".join(f"{name} {100 * gain:+.2f} ± {100 * half:.2f} points" for name, (gain, half) in gains.items())
