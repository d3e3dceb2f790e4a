"""Results in plain words: the verdict on a run, sentence by sentence."""

from collections.abc import Mapping

from lipscale.certificates.robustness import AttackName, Robustness
from lipscale.metrics import beside_the_majority, empty_praise
from lipscale.metrics.verdict import as_good_as_its_set, how_far_off, percent, temperature_sentence
from lipscale.runs.evaluation import Metrics
from lipscale.training.epoch import counted

ATTACK_NAMES: dict[AttackName, str] = {"pgd": "PGD", "autoattack": "AutoAttack"}


def verdict(metrics: Metrics, unit: str, robustness: Mapping[AttackName, Robustness] | None = None) -> list[str]:
    """What a reader should take away, most important first."""
    advice = f"Beware: {metrics.advice}." if metrics.advice else ""
    proven = proven_and_attacked(metrics, unit, robustness or {})
    temperature = temperature_sentence(metrics.temperature, metrics.temperature_interval, metrics.temperature_p_value)
    calibration = [how_far_off(metrics, metrics.test_size), temperature]
    allowed = as_good_as_its_set(metrics, metrics.calibration_size)
    low, high = map(percent, metrics.intervals.accuracy)
    share = f"{percent(metrics.accuracy)} of {metrics.test_size} test samples correctly"
    beside = beside_the_majority(metrics)
    accuracy = f"It classifies {share} (95 % interval {low} to {high}{f'; {beside}' if beside else ''})."
    accuracy = empty_praise(metrics, metrics.accuracy, metrics.intervals.accuracy) or accuracy
    sentences = [accuracy, *calibration, *proven, _training(metrics), allowed, advice]
    return [sentence for sentence in sentences if sentence]


def proven_and_attacked(metrics: Metrics, unit: str, robustness: Mapping[AttackName, Robustness]) -> list[str]:
    """What is proven to stay correct, and what each attack has left."""
    shares = [f"{percent(share)} for changes up to {eps}" for eps, share in metrics.certified_accuracy.items()]
    said = f"Correct and proven to stay so, as a share of all test samples: {', '.join(shares)} (l2 distance, {unit})."
    if not metrics.is_certified:
        said = "It is unconstrained and carries no certificate: nothing is proven about any change of an input."
    if metrics.is_certified and metrics.hollow:
        said = certified_by_class(metrics, unit)
    sentences = [said] if shares or not metrics.is_certified else []
    for result in robustness.values():
        left = [
            f"{percent(row.robust_accuracy)} of {row.samples} samples at {eps} (95 % interval "
            f"{percent(row.interval[0])} to {percent(row.interval[1])}"
            + (f"; proven: {percent(row.certified_accuracy)})" if metrics.is_certified else ")")
            for eps, row in result.at.items()
        ]
        sentences.append(f"{ATTACK_NAMES[result.attack]} left correct {', '.join(left)}.")
    return sentences


def certified_by_class(metrics: Metrics, unit: str) -> str:
    """What is proven of the class that fares worst: a share of all samples would hide it behind the commonest one."""
    proven = metrics.certified_recall.items()
    worst = {eps: min((share, c) for c, share in enumerate(row) if share is not None) for eps, row in proven}
    shares = [
        f"{percent(share)} of {metrics.classes[c]!r} for changes up to {eps}" for eps, (share, c) in worst.items()
    ]
    return f"Correct and proven to stay so, of the class that fares worst: {', '.join(shares)} (l2 distance, {unit})."


def _training(metrics: Metrics) -> str:
    trained = counted(metrics.phase1_epochs, "epoch")
    if metrics.lipschitz_constant is None:
        return f"It was trained for {trained} without a Lipschitz constraint."
    constant = f"L = {metrics.lipschitz_constant:.4g}"
    if metrics.settled is None:
        return f"It was trained at a fixed {constant}."
    if metrics.settled:
        return f"The feedback settled at {constant} after {trained} of Phase I."
    return f"The feedback had not settled after {trained} of Phase I, at {constant}."
