"""The verdict on calibration in sentences: how far off, the temperature, and what the calibration set allows."""

import math

from lipscale.metrics.intervals import Interval
from lipscale.metrics.summary import Scores


def how_far_off(scores: Scores, samples: int) -> str:
    """Whether it is calibrated to within the tolerance, and how far confidence is from accuracy.

    Args:
        scores: What was measured.
        samples: On how many test samples.

    Returns:
        Two sentences, the verdict first.
    """
    low, high = scores.calibration_error_limits
    within = f"calibrated to within {points(scores.calibration_tolerance)}"
    differ = f"confidence and accuracy differ by {points(scores.calibration_error)} on average"
    if scores.calibrated is None:
        verdict = (
            f"{samples:,} test samples cannot decide whether it is {within}: {differ}, somewhere from "
            f"{points(low, unit=False)} to {points(high)}; about {scores.samples_to_decide:,} would decide."
        )
    elif scores.calibrated:
        verdict = f"It is {within}: {differ}, with 95 % confidence by at most {points(high)}."
    else:
        verdict = f"It is not {within}: {differ}, with 95 % confidence by at least {points(low)}."
    return f"{verdict} {_direction(scores)}"


def _direction(scores: Scores) -> str:
    low, high = scores.intervals.esce
    if low <= 0 <= high:
        gap = f"{100 * scores.esce:+.1f} points (95 % interval {100 * low:+.1f} to {100 * high:+.1f})"
        open_end = "As a whole it is neither clearly over- nor under-confident"
        if scores.calibrated is False:  # it errs, in both directions or in one that cannot be told
            open_end = "Which way it errs as a whole these samples cannot tell"
        return f"{open_end}: confidence minus accuracy is {gap}."
    near, far = sorted((abs(low), abs(high)))
    return (
        f"Its confidence is {points(abs(scores.esce))} too {'high' if low > 0 else 'low'} "
        f"(95 % interval {points(near, unit=False)} to {points(far)})."
    )


def temperature_sentence(temperature: float, interval: Interval, p_value: float) -> str:
    """T on the test set, its interval, and the test of T = 1."""
    if math.isinf(temperature):
        return "On the test set it is no better than chance, so that no temperature would mend it."
    end = "no upper limit" if math.isinf(interval[1]) else f"{interval[1]:.2f}"
    p = "below 0.001" if p_value < 0.001 else f"{p_value:.3f}"
    return (
        f"The temperature that fits the test set is T = {temperature:.2f} (95 % interval {interval[0]:.2f} to {end}; "
        f"p-value of T = 1 {p}; T = 1 is calibrated, above is over-confident)."
    )


def as_good_as_its_set(scores: Scores, calibration_size: int) -> str:
    """Whether the ECE is within what a T* from so few calibration samples leaves; never the first sentence."""
    allowed = "a calibrated model on as many test samples"
    if calibration_size:
        allowed = f"a temperature from {calibration_size:,} calibration samples"
    relation = "is no larger" if scores.as_calibrated_as_its_set else "is larger"
    return (
        f"Its ECE of {scores.ece:.4f} {relation} than {allowed} would leave in 95 % of cases ({scores.ece_limit:.4f})."
    )


def percent(share: float) -> str:
    """0.947 -> 94.7 %."""
    return f"{100 * share:.1f} %"


def points(share: float, *, unit: bool = True) -> str:
    """0.0136 -> 1.4 points."""
    value = f"{100 * share:.1f}".removesuffix(".0")
    return f"{value} point{'' if value == '1' else 's'}" if unit else value
