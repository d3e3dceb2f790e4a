"""The paper's claims, each with the test that decides it: it holds, it does not hold here, or it is not decided.

Every test names the figures that it rests on. "Beyond doubt" means by more than two standard errors.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from lipscale import run as runs
from lipscale.certificate import Certificate
from lipscale.errors import UserError
from lipscale.experiments import recipes
from lipscale.experiments.plan import Row
from lipscale.experiments.profiles import CERTIFIED_AT, Profile
from lipscale.experiments.results import Result, Results
from lipscale.feedback import has_settled
from lipscale.lipschitz import get_lipschitz, set_lipschitz
from lipscale.mode import evaluation_mode
from lipscale.temperature import measure_temperature

HOLDS, FAILS, OPEN = "holds", "does not hold here", "not decided"
LARGEST_SPREAD = 0.03  # of L* (Sec. 4.2)
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
    verdicts.append(_decided(stop_is_robust, profile, results, recipes.settling(profile).runs[0].settings.data))
    verdicts.append(_decided(radii_are_invariant, profile, results, profile.main))
    return verdicts


def ece_is_u_shaped(profile: Profile, results: Results, data: str) -> Verdict:
    """ECE over L has its minimum inside; ESCE goes from negative to positive."""
    rows = _several(results, recipes.constants_figure(profile, data))
    errors = {name: _mean(r.metrics["ece"] for r in found) for name, found in rows.items()}
    signed = {name: _mean(r.metrics["esce"] for r in found) for name, found in rows.items()}
    first, *inner, last = rows
    lowest = min(errors, key=errors.__getitem__)
    under = all(r.metrics["intervals"]["esce"][1] < 0 for r in rows[first])
    over = all(r.metrics["intervals"]["esce"][0] > 0 for r in rows[last])
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
        HOLDS if under and over and valley else FAILS,
        data,
    )


def temperature_crosses_once(profile: Profile, results: Results, data: str) -> Verdict:
    """T*(L) is below 1 for small L, above 1 for large L, and changes sides once."""
    rows = _several(results, recipes.constants_figure(profile, data))
    changes, ends = [], []
    for seed in range(min(map(len, rows.values()))):
        sides = []
        for found in rows.values():
            measured = measure_temperature(found[seed].answers.logits, found[seed].answers.labels)
            logarithm = math.log(measured.value)
            if abs(logarithm) > 2 * measured.error:  # else it may be on either side
                sides.append(math.copysign(1, logarithm))
        changes.append(sum(a != b for a, b in pairwise(sides)))
        ends.append(bool(sides) and sides[0] < 0 < sides[-1])
    figures = "; ".join(
        f"{name}: T* {_mean(float(r.metrics['temperature']) for r in f):.3f}" for name, f in rows.items()
    )
    return Verdict(
        "T*(L) crosses 1 once",
        "Prop. 1, Sec. 3.2",
        "of the constants whose T* on the test set differs from 1 beyond doubt, in every seed the smaller ones have "
        "T* < 1, the larger ones T* > 1",
        f"{figures}; crossings by seed: {', '.join(map(str, changes))}",
        HOLDS if all(ends) and set(changes) == {1} else FAILS,
        data,
    )


def start_does_not_matter(profile: Profile, results: Results, data: str) -> Verdict:
    """L* from every L0 is the same."""
    rows = _several(results, recipes.starts_figure(profile, data))
    means = {name: _mean(r.constant for r in found) for name, found in rows.items()}
    spread = (max(means.values()) - min(means.values())) / _mean(means.values())
    by_seed = []
    for seed in range(min(map(len, rows.values()))):
        constants = [found[seed].constant for found in rows.values()]
        by_seed.append((max(constants) - min(constants)) / _mean(constants))
    error = _mean(_temperature_error(r) for found in rows.values() for r in found)
    return Verdict(
        "L* does not depend on L0",
        "Sec. 4.2, Fig. 2",
        f"(max - min) / mean of L*, averaged over seeds, is below {LARGEST_SPREAD:.0%}, or below what the calibration "
        "set can resolve (one standard error of log T*)",
        f"{'; '.join(f'{name}: {value:.3f}' for name, value in means.items())}; spread {spread:.1%} (single seeds "
        f"{', '.join(f'{s:.1%}' for s in by_seed)}), standard error of log T* {error:.1%}",
        HOLDS if spread < max(LARGEST_SPREAD, error) else FAILS,
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
        "the ECE of every seed is above its one-sided limit",
        f"{figures}; LiST's L* {_mean(r.constant for r in ours):.2f}",
        _all_or_none([not r.calibrated for r in found]),
        data,
    )


def offset_front_is_calibrated(profile: Profile, results: Results, data: str) -> Verdict:
    """Along xi every network is calibrated and certified accuracy rises."""
    rows = _several(results, recipes.offsets_figure(profile, data))
    certified = {name: [r.certified(CERTIFIED_AT) for r in found] for name, found in rows.items()}
    calibrated = {name: sum(r.calibrated for r in found) for name, found in rows.items()}
    stays = all(2 * calibrated[name] > len(found) for name, found in rows.items())
    first, *_, last = certified.values()
    gains = [b - a for a, b in zip(first, last, strict=False)]
    rises = _mean(gains) > 2 * _error(gains)
    figures = "; ".join(
        f"{name}: accuracy {_mean(r.metrics['accuracy'] for r in found):.3f}, ECE "
        f"{_mean(r.metrics['ece'] for r in found):.3f}, calibrated {calibrated[name]} of {len(found)}, "
        f"CRA {_mean(certified[name]):.3f}"
        for name, found in rows.items()
    )
    return Verdict(
        "the xi front stays calibrated while CRA rises",
        "Sec. 5.2, Fig. 3b",
        "at every xi most seeds are below the limit of ECE; CRA at 36/255 is larger at the last xi than at the first, "
        "beyond doubt (paired by seed)",
        figures,
        HOLDS if stays and rises else FAILS,
        data,
    )


def list_is_best(profile: Profile, results: Results, data: str) -> Verdict:
    """No fixed L and no baseline has a smaller ECE than LiST."""
    rows = {
        row.name: [r.metrics["ece"] for r in results.of(row)] for row in recipes.main_table(profile) if results.of(row)
    }
    ours = rows.pop("LiST (xi = 0)", None)
    if not ours or len(rows) < 2:
        raise Missing
    rows.pop("LiST (xi = 3)", None)
    better = {
        name: found
        for name, found in rows.items()
        if _mean(ours) - _mean(found) > 2 * math.hypot(_error(ours), _error(found))
    }
    nearest = sorted(rows, key=lambda name: _mean(rows[name]))[:3]
    return Verdict(
        "LiST's ECE is at or below that of every fixed L and of every baseline",
        "Sec. 5.2, Tab. 1",
        "no other row's mean ECE is below LiST's beyond doubt (standard errors over seeds)",
        f"LiST {_mean(ours):.4f} ± {_deviation(ours):.4f}; lowest others: "
        + ", ".join(f"{name} {_mean(rows[name]):.4f} ± {_deviation(rows[name]):.4f}" for name in nearest)
        + (f"; better beyond doubt: {', '.join(better)}" if better else ""),
        FAILS if better else HOLDS,
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
    steps = [
        (_mean(a) - _mean(b), 2 * math.hypot(_error(a), _error(b))) for a, b in pairwise(constants.values())
    ]  # from more to less data
    against = [gain for gain, doubt in steps if gain < -doubt]
    first, *_, last = constants.values()
    falls = _mean(first) - _mean(last) > 2 * math.hypot(_error(first), _error(last))
    return Verdict(
        "L* falls with N",
        "Sec. 5.2, Tab. 2",
        "L* at the largest N is above L* at the smallest beyond doubt, and no step in between goes the other way "
        "beyond doubt",
        "; ".join(f"{name}: {_mean(values):.2f} ± {_deviation(values):.2f}" for name, values in constants.items()),
        HOLDS if falls and not against else FAILS,
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
        spread = (max(frozen) - min(frozen)) / constants[fired[STOP] - 1]
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
        before = Certificate.of(run.net, inputs).radius(run.net(inputs))
        for temperature in (0.1, 0.5, 2.0, 10.0):
            set_lipschitz(run.net, constant / temperature)
            after = Certificate.of(run.net, inputs).radius(run.net(inputs))
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
        # the same test samples under the same seed: differences of single samples
        differences = torch.cat([score(b) - score(a) for a, b in zip(first, second, strict=False)])
        gain, error = float(differences.mean()), float(differences.std()) / math.sqrt(len(differences))
        gains.append((gain, error))
        parts.append(f"{name} {100 * gain:+.2f} ± {100 * error:.2f} points")
    kept = sum(r.calibrated for r in second)
    before = sum(r.calibrated for r in first)
    better = any(gain > 2 * error for gain, error in gains)
    worse = all(gain < -2 * error for gain, error in gains)
    lost = kept < before and 2 * kept < len(second)
    return Verdict(
        f"Phase II ({how}) improves accuracy or robustness without losing calibration",
        "Sec. 4.3, Tab. 2",
        "accuracy or CRA at 36/255 rises beyond doubt (paired by test sample), and most calibrated seeds stay so",
        f"{', '.join(parts)} (± standard error); ECE {_mean(r.metrics['ece'] for r in first):.4f} -> "
        f"{_mean(r.metrics['ece'] for r in second):.4f}; calibrated {before} -> {kept} of {len(second)}",
        FAILS if worse or lost else HOLDS if better else OPEN,
        data,
    )


_SCORES: dict[str, Callable[[Result], torch.Tensor]] = {
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
    found = results.of(row)
    if not found:
        raise Missing
    return found


def _several(results: Results, rows: Sequence[Row]) -> dict[str, list[Result]]:
    """The finished rows by name; at least two, or there is nothing to compare."""
    found = {row.name: results.of(row) for row in rows if results.of(row)}
    if len(found) < len(rows):
        raise Missing
    return found


def _temperature_error(result: Result) -> float:
    """The standard error of log T* at the end of Phase I."""
    line = [line for line in result.facts.history if line["phase"] == 1][-1]
    return float(line["temperature_error"])


def _all_or_none(facts: Sequence[bool]) -> str:
    return HOLDS if all(facts) else FAILS if not any(facts) else OPEN


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _error(values: Sequence[float]) -> float:
    """The standard error of a mean over seeds."""
    return _deviation(values) / math.sqrt(len(values))
