"""Results in plain words: the verdict of a run, sentence by sentence."""

from typing import Any

# what is measured with an interval: name, key in the metrics, format
MEASURED = (
    ("accuracy", "accuracy", ".4f"),
    ("ECE", "ece", ".4f"),
    ("ESCE", "esce", "+.4f"),
    ("maximum calibration error", "maximum_ce", ".4f"),
    ("adaptive ECE", "adaptive_ece", ".4f"),
    ("classwise ECE", "classwise_ece", ".4f"),
    ("smooth ECE", "smooth_ece", ".4f"),
    ("NLL", "nll", ".4f"),
    ("Brier score", "brier", ".4f"),
    ("Brier score, calibration part", "brier_calibration", ".4f"),
)
ATTACK_NAMES = {"pgd": "PGD", "autoattack": "AutoAttack"}


def verdict(metrics: dict[str, Any], unit: str, robustness: dict[str, Any] | None = None) -> list[str]:
    """What a reader should take away, most important first."""
    sentences = [_accuracy(metrics), _calibration(metrics), _certificate(metrics, unit)]
    sentences += [_attack(result, has_certificate(metrics)) for result in (robustness or {}).values()]
    sentences += [_training(metrics), _advice(metrics)]
    return [sentence for sentence in sentences if sentence]


def has_certificate(metrics: dict[str, Any]) -> bool:
    """Whether anything is proven about the network; nothing is where no constant holds it."""
    return metrics["lipschitz_constant"] is not None


def percent(share: float) -> str:
    """0.947 -> 94.7 %."""
    return f"{100 * share:.1f} %"


def _accuracy(metrics: dict[str, Any]) -> str:
    low, high = metrics.get("intervals", {}).get("accuracy", (None, None))
    band = "" if low is None else f" (95 % interval {percent(low)} to {percent(high)})"
    return f"It classifies {percent(metrics['accuracy'])} of {metrics['test_size']} test samples correctly{band}."


def _calibration(metrics: dict[str, Any]) -> str:
    if "calibrated" not in metrics:  # a run of an older version
        return f"Its ECE is {metrics['ece']:.4f}."
    ece, floor, limit = (metrics[key] for key in ("ece", "ece_floor", "ece_limit"))
    # the limit allows for the error of a T* from so many samples
    size = metrics.get("calibration_size")
    allowed = f"one calibrated on {size} samples" if size else "in most draws"
    if metrics["calibrated"]:
        return (
            f"It is not distinguishable from calibrated: its ECE is {ece:.4f}, where at this sample size a perfectly "
            f"calibrated model would show {floor:.4f} on average, and {allowed} up to {limit:.4f}."
        )
    low, high = metrics["intervals"]["esce"]
    direction = "It is over-confident" if low > 0 else "It is under-confident" if high < 0 else "It is not calibrated"
    mixed = " (over-confident in places, under-confident in others)" if low <= 0 <= high else ""
    return (
        f"{direction}{mixed}: its ECE is {ece:.4f}, where at this sample size a perfectly calibrated model would show "
        f"{floor:.4f} on average, and {allowed} would stay below {limit:.4f}."
    )


def _certificate(metrics: dict[str, Any], unit: str) -> str:
    if not has_certificate(metrics):
        return "It is unconstrained and carries no certificate: nothing is proven about any change of an input."
    certified = metrics["certified_accuracy"]
    if not certified:
        return ""
    shares = [f"{percent(share)} for changes up to {eps}" for eps, share in certified.items()]
    return f"Correct and proven to stay so, as a share of all test samples: {', '.join(shares)} (l2 distance, {unit})."


def _attack(result: dict[str, Any], certified: bool) -> str:
    name = ATTACK_NAMES.get(result["attack"], result["attack"])
    rows = result["at"].items()
    shares = [
        f"{percent(row['robust_accuracy'])} of {row['samples']} samples at {eps} (95 % interval "
        f"{percent(row['interval'][0])} to {percent(row['interval'][1])}"
        + (f"; proven: {percent(row['certified_accuracy'])})" if certified else ")")
        for eps, row in rows
    ]
    return f"{name} left correct {', '.join(shares)}."


def _advice(metrics: dict[str, Any]) -> str:
    return f"Beware: {advice}." if (advice := metrics.get("advice")) else ""


def _training(metrics: dict[str, Any]) -> str:
    if not has_certificate(metrics):
        return f"It was trained for {metrics['phase1_epochs']} epochs without a Lipschitz constraint."
    constant = f"L = {metrics['lipschitz_constant']:.4g}"
    epochs = metrics.get("phase1_epochs")
    if metrics.get("settled") is None:
        return f"It was trained at a fixed {constant}."
    if metrics["settled"]:
        return f"The feedback settled at {constant} after {epochs} epochs of Phase I."
    return f"The feedback had not settled after {epochs} epochs of Phase I, at {constant}."
