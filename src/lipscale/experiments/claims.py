"""The paper's claims, each with the test that decides it: it holds, it does not hold here, or it is not decided.

Every test names the figures that it rests on. "Beyond doubt" means that the 95 % interval over the seeds (Student's t,
unequal variances) lies on one side of zero; one seed alone leaves every doubt. A claim is decided on all of its runs,
or not at all.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import torch
from torch import Tensor

from lipscale import runs
from lipscale.bounds.constant import get_lipschitz, set_lipschitz
from lipscale.calibration.feedback import has_settled
from lipscale.calibration.temperature import measure_temperature
from lipscale.certificates import certify
from lipscale.errors import UserError
from lipscale.experiments import recipes
from lipscale.experiments.figures import relative_spread
from lipscale.experiments.intervals import crossed_doubt, deviation, doubt_of
from lipscale.experiments.plan import Row, describe
from lipscale.experiments.profiles import CERTIFIED_AT, Profile
from lipscale.experiments.results import Result, Results
from lipscale.layers.evaluation import evaluation_mode

HOLDS, FAILS, OPEN = "holds", "does not hold here", "not decided"
LARGEST_SPREAD = 0.03  # of L* (Sec. 4.2)
MARGIN = 0.01  # of ECE: what nobody would miss
# the paper's W and tolerance, then each of them halved and doubled
STOP, OTHER_STOPS = (30, 0.001), ((15, 0.001), (60, 0.001), (30, 0.0005), (30, 0.002))


@dataclass(frozen=True)
class Verdict:
    """A claim on a data set, the test that decides it, what was measured, and what follows."""

    claim: str
    place: str  # in the paper
    test: str
    figures: str
    verdict: str
    data: str


class Missing(Exception):
    """Runs that a claim needs are not there."""


def decide_claims(profile: Profile, results: Results) -> list[Verdict]:
    """Every claim on every data set that it is about; one whose runs are missing is not decided."""
    verdicts = []
    for claim in (ece_is_u_shaped, temperature_crosses_once, start_does_not_matter, retraining_fails,
                  offset_front_is_calibrated):  # fmt: skip
        verdicts += [_decided(claim, profile, results, data) for data in profile.pair]
    verdicts.append(_decided(list_is_best, profile, results, profile.main))
    verdicts += [_decided(phase_two_helps, profile, results, data) for data in profile.sets]
    verdicts.append(_decided(restart_helps, profile, results, profile.main))
    verdicts.append(_decided(less_data_smaller_constant, profile, results, profile.main))
    verdicts.append(_decided(stop_is_robust, profile, results, describe(recipes.settling(profile).runs[0])))
    verdicts.append(_decided(radii_are_invariant, profile, results, profile.main))
    return verdicts


def ece_is_u_shaped(profile: Profile, results: Results, data: str) -> Verdict:
    """ECE over L has its minimum inside; ESCE goes from negative to positive."""
    rows = _several(results, recipes.constants_figure(profile, data))
    errors = {name: fmean(r.metrics["ece"] for r in found) for name, found in rows.items()}
    signed = {name: fmean(r.metrics["esce"] for r in found) for name, found in rows.items()}
    first, *inner, last = rows
    lowest = min(errors, key=errors.__getitem__)
    under = all(r.metrics["intervals"]["esce"][1] < 0 for r in rows[first])
    over = all(r.metrics["intervals"]["esce"][0] > 0 for r in rows[last])
    # the contrary: over-confident at the smallest L, under-confident at the largest
    wrong_way = all(r.metrics["intervals"]["esce"][0] > 0 for r in rows[first]) or all(
        r.metrics["intervals"]["esce"][1] < 0 for r in rows[last]
    )
    valley = lowest in inner and all(
        errors[lowest] < r.metrics["intervals"]["ece"][0] for end in (first, last) for r in rows[end]
    )
    figures = "; ".join(f"{name}: ECE {errors[name]:.3f}, ESCE {signed[name]:+.3f}" for name in rows)
    test = (
        "at the smallest L every seed's 95 % interval of ESCE is below 0, at the largest above 0; the least mean ECE "
        "is at an inner L and below every interval of both ends"
    )
    return Verdict(
        "ECE over fixed L is U-shaped, ESCE goes from negative to positive",
        "Fig. 1a, App. C",
        test,
        figures,
        HOLDS if under and over and valley else FAILS if wrong_way else OPEN,
        data,
    )


def temperature_crosses_once(profile: Profile, results: Results, data: str) -> Verdict:
    """T*(L) is below 1 for small L, above 1 for large L, and changes sides once."""
    rows = _several(results, recipes.constants_figure(profile, data))
    changes, once = [], []
    for seed in zip(*rows.values(), strict=True):
        measured = [measure_temperature(r.answers.logits, r.answers.labels) for r in seed]
        # one whose T* may be on either side decides nothing
        sides = [m.value > 1 for m in measured if abs(math.log(m.value)) > 2 * m.error]
        changes.append(sum(a != b for a, b in pairwise(sides)))
        once.append(changes[-1] == 1 and sides[-1])
    figures = "; ".join(
        f"{name}: T* {fmean(float(r.metrics['temperature']) for r in f):.3f}" for name, f in rows.items()
    )
    return Verdict(
        "T*(L) crosses 1 once",
        "Prop. 1, Sec. 3.2",
        "of the constants whose T* on the test set differs from 1 beyond doubt, in every seed the smaller ones have "
        "T* < 1, the larger ones T* > 1",
        f"{figures}; crossings by seed: {', '.join(map(str, changes))}",
        _all_or_none(once),
        data,
    )


def start_does_not_matter(profile: Profile, results: Results, data: str) -> Verdict:
    """L* from every L0 is the same."""
    rows = _several(results, recipes.starts_figure(profile, data))
    seeds = [relative_spread([r.constant for r in alike]) for alike in zip(*rows.values(), strict=True)]
    error = fmean(_temperature_error(r) for found in rows.values() for r in found)
    spread = fmean(seeds)
    # a spread that the calibration set could not resolve decides nothing
    verdict = HOLDS if spread < LARGEST_SPREAD else FAILS if spread > error else OPEN
    means = {name: fmean(r.constant for r in found) for name, found in rows.items()}
    return Verdict(
        "L* does not depend on L0",
        "Sec. 4.2, Fig. 2",
        f"(max - min) / mean of L* over L0, in the mean over seeds, is below {LARGEST_SPREAD:.0%}; it does not hold "
        "where that is also above one standard error of log T*",
        f"{'; '.join(f'{name}: {value:.3f}' for name, value in means.items())}; spread {spread:.1%} (single seeds "
        f"{', '.join(f'{s:.1%}' for s in seeds)}), standard error of log T* {error:.1%}",
        verdict,
        data,
    )


def retraining_fails(profile: Profile, results: Results, data: str) -> Verdict:
    """The heuristic L' = 1 / T* of a 1-Lipschitz network does not calibrate."""
    found = _some(results, recipes.retrained(profile, data))
    ours = _some(results, recipes.lipschitz_scaling(profile, 0.0, data))
    figures = "; ".join(f"L' {r.constant:.2f}: ECE {r.metrics['ece']:.3f} (limit {r.limit:.3f})" for r in found)
    return Verdict(
        "retraining at L' = 1 / T* of a 1-Lipschitz network does not calibrate",
        "Sec. 3.2",
        "the ECE of every seed is above its one-sided limit (T* is the test set's, the best that it could be)",
        f"{figures}; LiST's L* {fmean(r.constant for r in ours):.2f}",
        _all_or_none([not r.calibrated for r in found]),
        data,
    )


def offset_front_is_calibrated(profile: Profile, results: Results, data: str) -> Verdict:
    """Along xi every network is calibrated and certified accuracy rises."""
    rows = _several(results, recipes.offsets_figure(profile, data))
    calibrated = {name: sum(r.calibrated for r in found) for name, found in rows.items()}
    stays = all(2 * calibrated[name] > len(found) for name, found in rows.items())
    lost = any(2 * calibrated[name] < len(found) for name, found in rows.items())
    first, *_, last = rows.values()
    gains, parts = [], []  # from the first xi to the last
    for epsilon in (CERTIFIED_AT, profile.attack.epsilon):  # the two radii that the paper reports
        differences = [b.certified(epsilon) - a.certified(epsilon) for a, b in zip(first, last, strict=True)]
        gain, doubt = fmean(differences), doubt_of(differences)
        gains.append((gain, doubt))
        parts.append(f"CRA at {epsilon:.3g} {100 * gain:+.2f} ± {100 * doubt:.2f} points")
    rises = any(gain > doubt for gain, doubt in gains)
    falls = all(gain < -doubt for gain, doubt in gains)
    figures = "; ".join(
        f"{name}: accuracy {fmean(r.metrics['accuracy'] for r in found):.3f}, ECE "
        f"{fmean(r.metrics['ece'] for r in found):.3f}, calibrated {calibrated[name]} of {len(found)}, "
        f"CRA {fmean(r.certified(CERTIFIED_AT) for r in found):.3f}"
        for name, found in rows.items()
    )
    return Verdict(
        "the xi front stays calibrated while CRA rises",
        "Sec. 5.2, Fig. 3b",
        "at every xi most seeds are below the limit of ECE; CRA at 36/255 or at 0.5 is larger at the last xi than at "
        "the first, beyond doubt (paired by seed)",
        f"{figures}; from first to last {', '.join(parts)}",
        FAILS if lost or falls else HOLDS if stays and rises else OPEN,
        data,
    )


def list_is_best(profile: Profile, results: Results, data: str) -> Verdict:
    """No fixed L and no baseline has a smaller ECE than LiST."""
    rows = {
        name: [r.metrics["ece"] for r in found]
        for name, found in _several(results, recipes.main_table(profile)).items()
    }
    ours = rows.pop("LiST (xi = 0)")
    rows.pop("LiST (xi = 3)", None)
    gaps = {name: fmean(ours) - fmean(found) for name, found in rows.items()}
    # as many comparisons as rows: each must be that much surer
    better = [name for name, gap in gaps.items() if gap > doubt_of(ours, rows[name], comparisons=len(rows))]
    nearest = sorted(rows, key=lambda name: fmean(rows[name]))[:3]
    closest = nearest[0]
    # at or below: the interval of the difference from the best other ends below a margin that nobody would miss
    level = gaps[closest] + doubt_of(ours, rows[closest]) < MARGIN
    return Verdict(
        "LiST's ECE is at or below that of every fixed L and of every baseline",
        "Sec. 5.2, Tab. 1",
        f"LiST's mean ECE is the lowest, or above the best other's by less than {MARGIN} beyond doubt; it does not "
        f"hold where any other is lower beyond doubt ({len(rows)} comparisons, Bonferroni)",
        f"LiST {fmean(ours):.4f} ± {deviation(ours):.4f}; lowest others: "
        + ", ".join(f"{name} {fmean(rows[name]):.4f} ± {deviation(rows[name]):.4f}" for name in nearest)
        + (f"; better beyond doubt: {', '.join(better)}" if better else ""),
        FAILS if better else HOLDS if gaps[closest] <= 0 or level else OPEN,
        data,
    )


def phase_two_helps(profile: Profile, results: Results, data: str) -> Verdict:
    """Phase II, with the optimizer going on, improves accuracy or robustness and keeps calibration."""
    return _compare_phases(profile, results, data, "II", "continuing the optimizer")


def restart_helps(profile: Profile, results: Results, data: str) -> Verdict:
    """Phase II with a restarted optimizer."""
    return _compare_phases(profile, results, data, "II, restarted", "restarting the optimizer")


def less_data_smaller_constant(profile: Profile, results: Results, data: str) -> Verdict:
    """L* falls as the training set gets smaller."""
    rows = _several(results, recipes.low_data_table(profile))
    constants = {name: [r.constant for r in found] for name, found in rows.items()}
    first, *_, last = constants.values()
    falls, doubt = fmean(first) - fmean(last), doubt_of(first, last)
    against = [name for (_, a), (name, b) in pairwise(constants.items()) if fmean(b) - fmean(a) > doubt_of(a, b)]
    return Verdict(
        "L* is smaller with less data",
        "Sec. 5.2, Tab. 2",
        "L* at the largest N is above L* at the smallest beyond doubt, and no step in between goes the other way "
        "beyond doubt",
        "; ".join(f"{name}: {fmean(values):.2f} ± {deviation(values):.2f}" for name, values in constants.items()),
        FAILS if against or falls < -doubt else HOLDS if falls > doubt else OPEN,
        data,
    )


def stop_is_robust(profile: Profile, results: Results, data: str) -> Verdict:
    """Other windows and tolerances of the stop would have frozen about the same L."""
    (run,) = _some(results, recipes.settling(profile))
    constants = [line["lipschitz"] for line in run.facts.history if line["phase"] == 1]
    stops = {
        (window, tolerance): next(
            (
                epoch
                for epoch in range(window, len(constants) + 1)
                if has_settled(constants[:epoch], window=window, tolerance=tolerance)
            ),
            None,
        )
        for window, tolerance in (STOP, *OTHER_STOPS)
    }
    fired = {key: epoch for key, epoch in stops.items() if epoch is not None}
    spread, verdict = math.nan, OPEN
    if len(fired) == len(stops):
        frozen = [constants[epoch - 1] for epoch in fired.values()]
        spread = relative_spread(frozen)
        verdict = HOLDS if spread < LARGEST_SPREAD else FAILS
    figures = ", ".join(
        f"W {window}, {tolerance}: epoch {epoch}, L {constants[epoch - 1]:.3f}"
        for (window, tolerance), epoch in fired.items()
    )
    return Verdict(
        "the stop is robust to W and its tolerance",
        "App. E",
        "the stop is replayed on one long run of the paper's rule, with W and the tolerance as in the paper, and each "
        f"halved and doubled; the constants that would be frozen lie within {LARGEST_SPREAD:.0%}",
        f"{figures}; not fired within {len(constants)} epochs: {len(stops) - len(fired)}; spread {spread:.1%}",
        verdict,
        data,
    )


@torch.no_grad()
def radii_are_invariant(profile: Profile, results: Results, data: str) -> Verdict:
    """Temperature scaling divides margins and L alike, and leaves every radius as it was."""
    (result, *_) = _some(results, recipes.lipschitz_scaling(profile))
    run = runs.load(result.facts.folder, device=result.settings.device)
    inputs, _ = runs.first_test_samples(run, 500)
    constant, worst = get_lipschitz(run.net), 0.0
    with evaluation_mode(run.net):
        before = certify(run.net, inputs).radius(run.net(inputs))
        for temperature in (0.1, 0.5, 2.0, 10.0):
            set_lipschitz(run.net, constant / temperature)
            after = certify(run.net, inputs).radius(run.net(inputs))
            worst = max(worst, float((after - before).abs().max() / before.max()))
    return Verdict(
        "certified radii are invariant under temperature scaling",
        "Sec. 3.3",
        "the network's logits and constant are divided by T = 0.1, 0.5, 2, 10; the radii of 500 test samples change by "
        "less than 1e-4 of the largest",
        f"largest change {worst:.1e}",
        HOLDS if worst < 1e-4 else FAILS,
        data,
    )


def _compare_phases(profile: Profile, results: Results, data: str, after: str, how: str) -> Verdict:
    rows = {row.name: _some(results, row) for row in recipes.phases(profile, data)}
    first, second = rows["I"], rows[after]
    gains, parts = [], []
    for name, score in _SCORES.items():
        # the same test samples under the same seed: differences of single samples, (seeds, N)
        differences = torch.stack([score(b) - score(a) for a, b in zip(first, second, strict=True)])
        gain, doubt = float(differences.mean()), crossed_doubt(differences)
        gains.append((gain, doubt))
        parts.append(f"{name} {100 * gain:+.2f} ± {100 * doubt:.2f} points")
    before, kept = (sum(r.calibrated for r in found) for found in (first, second))
    better = any(gain > doubt for gain, doubt in gains)
    worse = any(gain < -doubt for gain, doubt in gains) and not better
    lost = 2 * kept < before
    return Verdict(
        f"Phase II ({how}) improves accuracy or robustness without losing calibration",
        "Sec. 4.3, Tab. 2",
        "accuracy or CRA at 36/255 rises beyond doubt (test samples and seeds), and most calibrated seeds stay so; it "
        "does not hold where one falls beyond doubt and none rises, or where most calibrated seeds are lost",
        f"{', '.join(parts)} (± 95 %); ECE {fmean(r.metrics['ece'] for r in first):.4f} -> "
        f"{fmean(r.metrics['ece'] for r in second):.4f}; calibrated {before} -> {kept} of {len(second)}",
        FAILS if worse or lost else HOLDS if better and before else OPEN,
        data,
    )


_SCORES: dict[str, Callable[[Result], Tensor]] = {
    "accuracy": lambda r: r.answers.right.double(),
    "CRA": lambda r: (r.answers.certified >= CERTIFIED_AT).double(),
}


def _decided(
    claim: Callable[[Profile, Results, str], Verdict],
    profile: Profile,
    results: Results,
    data: str,
) -> Verdict:
    try:
        return claim(profile, results, data)
    except (Missing, UserError) as problem:
        words = (claim.__doc__ or claim.__name__).rstrip(".")
        return Verdict(words, "", "", str(problem) or "its runs are not finished", OPEN, data)


def _some(results: Results, row: Row) -> list[Result]:
    """All runs of a row, in the order of its seeds, so that those of two rows are pairs."""
    found = results.of(row)
    if len(found) < len(row.runs):
        raise Missing
    return found


def _several(results: Results, rows: Sequence[Row]) -> dict[str, list[Result]]:
    """All runs of all rows, by the row's name."""
    return {row.name: _some(results, row) for row in rows}


def _temperature_error(result: Result) -> float:
    """The standard error of log T* at the end of Phase I."""
    line = [line for line in result.facts.history if line["phase"] == 1][-1]
    return math.inf if line["temperature_error"] is None else float(line["temperature_error"])


def _all_or_none(facts: Sequence[bool]) -> str:
    return HOLDS if all(facts) else FAILS if not any(facts) else OPEN
