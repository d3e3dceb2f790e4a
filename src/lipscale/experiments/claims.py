"""The paper's claims, each with the test that decides it: it holds, it does not hold here, or it is not decided.

Every test names the figures that it rests on. A difference is significant where its 95 % interval over the seeds
(Student's t, unequal variances) lies on one side of zero; with one seed alone none is. A claim is decided on all of its
runs, or not at all.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
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
RADII = (CERTIFIED_AT, 0.5)  # at which the paper reports CRA
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


Found = dict[str, list[Result]]  # all runs of the rows, by their names; those of two rows are pairs
Decided = tuple[bool, bool, str]  # whether it fails, whether it holds if not, and the figures that this rests on
Claim = Callable[[Profile, Results, str], Verdict]
MAIN, PAIR, ALL = 1, 2, 3  # of a profile's sets
CLAIMS: dict[Claim, int] = {}  # and how many sets each is about


def _claim(
    place: str, sets: int, rows: Callable[[Profile, str], list[Row]], *, own_data: bool = False
) -> Callable[[Callable[[Found], Decided]], Claim]:
    """Make a claim about these rows of the function that decides it; its docstring is the sentence, then the test."""

    def named(decide: Callable[[Found], Decided]) -> Claim:
        text, test = (" ".join(part.split()).rstrip(".") for part in (inspect.getdoc(decide) or "").split("\n\n"))

        def claim(profile: Profile, results: Results, data: str) -> Verdict:
            planned = rows(profile, data)
            found = {row.name: results.of(row) for row in planned}
            verdict, figures = OPEN, "its runs are not finished"
            if all(len(found[row.name]) == len(row.runs) for row in planned):
                try:
                    fails, holds, figures = decide(found)
                    verdict = FAILS if fails else HOLDS if holds else OPEN
                except UserError as problem:
                    figures = str(problem)
            about = describe(planned[0].runs[0]) if own_data else data
            return Verdict(text, place, test, figures, verdict, about)

        CLAIMS[claim] = sets
        return claim

    return named


def decide_claims(profile: Profile, results: Results) -> list[Verdict]:
    """Every claim on every data set that it is about; one whose runs are missing is not decided."""
    return [claim(profile, results, data) for claim, sets in CLAIMS.items() for data in tuple(profile.sets)[:sets]]


@_claim("Fig. 1a, App. C", PAIR, recipes.constants_figure)
def ece_is_u_shaped(found: Found) -> Decided:
    """ECE over fixed L is U-shaped, ESCE goes from negative to positive.

    at the smallest L every seed's 95 % interval of ESCE is below 0, at the largest above 0; the least mean ECE is at an
    inner L and below every interval of both ends
    """
    errors, signed = _means(found, "metrics.ece"), _means(found, "metrics.esce")
    first, *inner, last = found
    # at either end: whether all seeds are under-confident, and whether all are over-confident
    below = {end: all(r.metrics.intervals.esce[1] < 0 for r in found[end]) for end in (first, last)}
    above = {end: all(r.metrics.intervals.esce[0] > 0 for r in found[end]) for end in (first, last)}
    lowest = min(errors, key=errors.__getitem__)
    valley = lowest in inner and all(errors[lowest] < r.metrics.intervals.ece[0] for r in found[first] + found[last])
    figures = "; ".join(f"{name}: ECE {errors[name]:.3f}, ESCE {signed[name]:+.3f}" for name in found)
    return above[first] or below[last], below[first] and above[last] and valley, figures


@_claim("Prop. 1, Sec. 3.2", PAIR, recipes.constants_figure)
def temperature_crosses_once(found: Found) -> Decided:
    """T*(L) crosses 1 once.

    of the constants whose T* on the test set differs significantly from 1, in every seed the smaller ones have T* < 1,
    the larger ones T* > 1
    """
    changes, once, otherwise = [], [], []
    for seed in zip(*found.values(), strict=True):
        measured = [measure_temperature(r.answers.logits, r.answers.labels) for r in seed]
        # one whose T* may be on either side decides nothing
        sides = [m.value > 1 for m in measured if abs(math.log(m.value)) > 2 * m.error]
        changes.append(sum(a != b for a, b in pairwise(sides)))
        once.append(changes[-1] == 1 and sides[-1])
        # a grid that ends before a crossing, or resolves none, shows nothing against it
        otherwise.append(changes[-1] > 1 or (changes[-1] == 1 and not sides[-1]))
    figures = "; ".join(f"{name}: T* {mean:.3f}" for name, mean in _means(found, "metrics.temperature").items())
    return all(otherwise), all(once), f"{figures}; crossings by seed: {', '.join(map(str, changes))}"


@_claim("Sec. 4.2, Fig. 2", PAIR, recipes.starts_figure)
def start_does_not_matter(found: Found) -> Decided:
    """L* does not depend on L0.

    (max - min) / mean of L* over L0, in the mean over seeds, is below 3%; it does not hold where that is also above one
    standard error of log T*
    """
    seeds = [relative_spread([r.constant for r in alike]) for alike in zip(*found.values(), strict=True)]
    errors = [r.phase_one[-1].temperature_error for alike in found.values() for r in alike]
    spread, error = fmean(seeds), fmean(math.inf if error is None else error for error in errors)
    figures = (
        f"{'; '.join(f'{name}: {mean:.3f}' for name, mean in _means(found, 'constant').items())}; spread {spread:.1%} "
        f"(single seeds {', '.join(f'{s:.1%}' for s in seeds)}), standard error of log T* {error:.1%}"
    )
    # a spread that the calibration set could not resolve decides nothing
    return spread > error and spread >= LARGEST_SPREAD, spread < LARGEST_SPREAD, figures


@_claim("Sec. 3.2", PAIR, recipes.retraining)
def retraining_fails(found: Found) -> Decided:
    """retraining at L' = 1 / T* of a 1-Lipschitz network does not calibrate.

    the ECE of every seed is above its one-sided limit (T* is the test set's, the best that it could be)
    """
    again, ours = found.values()
    figures = "; ".join(f"L' {r.constant:.2f}: ECE {r.metrics.ece:.3f} (limit {r.limit:.3f})" for r in again)
    calibrated = [r.calibrated for r in again]
    return all(calibrated), not any(calibrated), f"{figures}; LiST's L* {_mean(ours, 'constant'):.2f}"


@_claim("Sec. 5.2, Fig. 3b", PAIR, recipes.offsets_figure)
def offset_front_is_calibrated(found: Found) -> Decided:
    """the xi front stays calibrated while CRA rises.

    at every xi most seeds are below the limit of ECE; CRA at 36/255 or at 0.5 is significantly larger at the last xi
    than at the first (paired by seed)
    """
    calibrated = {name: sum(r.calibrated for r in seeds) for name, seeds in found.items()}
    stays = all(2 * calibrated[name] > len(seeds) for name, seeds in found.items())
    lost = any(2 * calibrated[name] < len(seeds) for name, seeds in found.items())
    first, *_, last = found.values()
    gains = {}
    for epsilon in RADII:
        differences = [b.certified(epsilon) - a.certified(epsilon) for a, b in zip(first, last, strict=True)]
        gains[f"CRA at {epsilon:.3g}"] = fmean(differences), half_width(differences)
    rises = any(gain > half for gain, half in gains.values())
    falls = all(gain < -half for gain, half in gains.values())
    figures = "; ".join(
        f"{name}: accuracy {_mean(seeds, 'metrics.accuracy'):.3f}, ECE {_mean(seeds, 'metrics.ece'):.3f}, calibrated "
        f"{calibrated[name]} of {len(seeds)}, CRA {fmean(r.certified(CERTIFIED_AT) for r in seeds):.3f}"
        for name, seeds in found.items()
    )
    return lost or falls, stays and rises, f"{figures}; from first to last {_in_points(gains)}"


@_claim("Sec. 5.2, Tab. 1", MAIN, lambda profile, data: recipes.main_table(profile))
def list_is_best(found: Found) -> Decided:
    """LiST's ECE is at or below that of every fixed L and of every baseline.

    LiST's mean ECE is the lowest, or significantly less than 0.01 above the best other's; it does not hold where any
    other is significantly lower (Bonferroni over all others)
    """
    rows = {name: [r.metrics.ece for r in seeds] for name, seeds in found.items() if name != "LiST (xi = 3)"}
    ours = rows.pop("LiST (xi = 0)")
    gaps = {name: fmean(ours) - fmean(eces) for name, eces in rows.items()}
    # as many comparisons as rows: each must be that much surer
    better = [name for name, gap in gaps.items() if gap > half_width(ours, rows[name], comparisons=len(rows))]
    nearest = sorted(rows, key=lambda name: fmean(rows[name]))[:3]
    gap = gaps[nearest[0]]
    # at or below: the interval of the difference from the best other ends below a margin that nobody would miss
    level = gap <= 0 or gap + half_width(ours, rows[nearest[0]]) < MARGIN
    figures = f"LiST {_spread(ours, 4)}; lowest of {len(rows)} others: "
    figures += ", ".join(f"{name} {_spread(rows[name], 4)}" for name in nearest)
    figures += f"; significantly better: {', '.join(better)}" if better else ""
    return bool(better), level, figures


def _phase_two(after: str, how: str, sets: int) -> Claim:
    """Phase I against one of the two kinds of Phase II."""

    def decide(found: Found) -> Decided:
        first, second = found["I"], found[after]
        gains = {}
        scores = {"accuracy": lambda r: r.answers.right, "CRA": lambda r: r.answers.certified >= CERTIFIED_AT}
        for name, score in scores.items():
            # the same test samples under the same seed: differences of single samples, (seeds, N)
            pairs = zip(first, second, strict=True)
            differences = torch.stack([score(b).double() - score(a).double() for a, b in pairs])
            gains[name] = float(differences.mean()), crossed_half_width(differences)
        before, afterwards = (sum(r.calibrated for r in seeds) for seeds in (first, second))
        kept = sum(a.calibrated and b.calibrated for a, b in zip(first, second, strict=True))
        better = any(gain > half for gain, half in gains.values())
        worse = any(gain < -half for gain, half in gains.values()) and not better
        errors = " -> ".join(f"{_mean(seeds, 'metrics.ece'):.4f}" for seeds in (first, second))
        figures = f"{_in_points(gains)} (± 95 %); ECE {errors}; calibrated {before} -> {afterwards} of {len(second)}"
        return worse or 2 * kept < before, better and 2 * kept > before, figures

    decide.__doc__ = f"""Phase II ({how} the optimizer) improves accuracy or robustness without losing calibration.

    accuracy or CRA at 36/255 rises significantly (test samples and seeds), and most calibrated seeds stay so; it does
    not hold where one falls significantly and none rises, or where most calibrated seeds are lost
    """
    return _claim("Sec. 4.3, Tab. 2", sets, recipes.phases)(decide)


phase_two_helps = _phase_two("II", "continuing", ALL)
restart_helps = _phase_two("II, restarted", "restarting", MAIN)


@_claim("Sec. 5.2, Tab. 2", MAIN, lambda profile, data: recipes.low_data_table(profile))
def less_data_smaller_constant(found: Found) -> Decided:
    """L* is smaller with less data.

    L* at the largest N is significantly above L* at the smallest, and no step in between goes significantly the other
    way
    """
    constants = {name: [r.constant for r in seeds] for name, seeds in found.items()}
    first, *_, last = constants.values()
    fall, half = fmean(first) - fmean(last), half_width(first, last)
    against = any(fmean(b) - fmean(a) > half_width(a, b) for a, b in pairwise(constants.values()))
    figures = "; ".join(f"{name}: {_spread(values, 2)}" for name, values in constants.items())
    return against or fall < -half, fall > half, figures


@_claim("App. E", MAIN, lambda profile, data: [recipes.settling(profile)], own_data=True)
def stop_is_robust(found: Found) -> Decided:
    """the stop is robust to W and its tolerance.

    the stop is replayed on one long run of the paper's rule, with W and the tolerance as in the paper, and each halved
    and doubled; the constants that would be frozen lie within 3%
    """
    ((run,),) = found.values()
    constants = run.constants[1 : 1 + len(run.phase_one)]
    frozen, fired = [], []
    for window, tolerance in STOPS:
        for epoch in range(window, len(constants) + 1):
            if has_settled(constants[:epoch], window=window, tolerance=tolerance):
                frozen.append(constants[epoch - 1])
                fired.append(f"W {window}, {tolerance}: epoch {epoch}, L {frozen[-1]:.3f}")
                break
    missed = len(STOPS) - len(frozen)
    spread = math.nan if missed else relative_spread(frozen)  # nan decides nothing
    figures = f"{', '.join(fired)}; not fired within {len(constants)} epochs: {missed}; spread {spread:.1%}"
    return spread >= LARGEST_SPREAD, spread < LARGEST_SPREAD, figures


@_claim("Sec. 3.3", MAIN, lambda profile, data: [recipes.lipschitz_scaling(profile)])
@torch.no_grad()
def radii_are_invariant(found: Found) -> Decided:
    """certified radii are invariant under temperature scaling.

    the network's logits and constant are divided by T = 0.1, 0.5, 2, 10; the radii of 500 test samples change by less
    than 1e-4 of the largest
    """
    ((result, *_),) = found.values()
    run = runs.load(result.folder, device=result.settings.device)
    inputs, _ = runs.first_test_samples(run, 500)
    constant, worst = get_lipschitz(run.net), 0.0
    with evaluation_mode(run.net):
        before = certify(run.net, inputs).radius()
        for temperature in (0.1, 0.5, 2.0, 10.0):
            set_lipschitz(run.net, constant / temperature)
            after = certify(run.net, inputs).radius()
            worst = max(worst, float((after - before).abs().max() / before.max()))
    return worst >= 1e-4, worst < 1e-4, f"largest change {worst:.1e}"


def _mean(seeds: Sequence[Result], quantity: str) -> float:
    return fmean(map(attrgetter(quantity), seeds))


def _means(found: Found, quantity: str) -> dict[str, float]:
    return {name: _mean(seeds, quantity) for name, seeds in found.items()}


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{fmean(values):.{digits}f} ± {deviation(values):.{digits}f}"


def _in_points(gains: dict[str, tuple[float, float]]) -> str:
    return ", ".join(f"{name} {100 * gain:+.2f} ± {100 * half:.2f} points" for name, (gain, half) in gains.items())
