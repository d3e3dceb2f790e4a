"""Results in plain words: the verdict on a run, sentence by sentence."""

from collections.abc import Mapping

from lipscale.certificates.robustness import AttackName, Robustness
from lipscale.runs.evaluation import Metrics

ATTACK_NAMES: dict[AttackName, str] = {"pgd": "PGD", "autoattack": "AutoAttack"}


def verdict(metrics: Metrics, unit: str, robustness: Mapping[AttackName, Robustness] | None = None) -> list[str]:
    """What a reader should take away, most important first."""
    attacks = [_attack(result, metrics.is_certified) for result in (robustness or {}).values()]
    advice = f"Beware: {metrics.advice}." if metrics.advice else ""
    certificate = _certificate(metrics, unit)
    sentences = [_accuracy(metrics), _calibration(metrics), certificate, *attacks, _training(metrics), advice]
    return [sentence for sentence in sentences if sentence]


def percent(share: float) -> str:
    """0.947 -> 94.7 %."""
    return f"{100 * share:.1f} %"


def _accuracy(metrics: Metrics) -> str:
    low, high = map(percent, metrics.intervals.accuracy)
    share = percent(metrics.accuracy)
    return f"It classifies {share} of {metrics.test_size} test samples correctly (95 % interval {low} to {high})."


def _calibration(metrics: Metrics) -> str:
    # the limit allows for the error of a T* from so many samples
    size = metrics.calibration_size
    allowed = f"one calibrated on {size} samples" if size else "in most draws"
    low, high = metrics.intervals.esce
    if metrics.calibrated:
        finding, upto = "not distinguishable from calibrated", "up to"
    elif low <= 0 <= high:
        finding, upto = "not calibrated (over-confident in places, under-confident in others)", "would stay below"
    else:
        finding, upto = "over-confident" if low > 0 else "under-confident", "would stay below"
    return (
        f"It is {finding}: its ECE is {metrics.ece:.4f}, where at this sample size a perfectly calibrated model would "
        f"show {metrics.ece_floor:.4f} on average, and {allowed} {upto} {metrics.ece_limit:.4f}."
    )


def _certificate(metrics: Metrics, unit: str) -> str:
    if not metrics.is_certified:
        return "It is unconstrained and carries no certificate: nothing is proven about any change of an input."
    shares = [f"{percent(share)} for changes up to {eps}" for eps, share in metrics.certified_accuracy.items()]
    said = f"Correct and proven to stay so, as a share of all test samples: {', '.join(shares)} (l2 distance, {unit})."
    return said if shares else ""


def _attack(result: Robustness, certified: bool) -> str:
    shares = [
        f"{percent(row.robust_accuracy)} of {row.samples} samples at {eps} (95 % interval "
        f"{percent(row.interval[0])} to {percent(row.interval[1])}"
        + (f"; proven: {percent(row.certified_accuracy)})" if certified else ")")
        for eps, row in result.at.items()
    ]
    return f"{ATTACK_NAMES[result.attack]} left correct {', '.join(shares)}."


def _training(metrics: Metrics) -> str:
    epochs = f"{metrics.phase1_epochs} epochs"
    if metrics.lipschitz_constant is None:
        return f"It was trained for {epochs} without a Lipschitz constraint."
    constant = f"L = {metrics.lipschitz_constant:.4g}"
    if metrics.settled is None:
        return f"It was trained at a fixed {constant}."
    if metrics.settled:
        return f"The feedback settled at {constant} after {epochs} of Phase I."
    return f"The feedback had not settled after {epochs} of Phase I, at {constant}."
