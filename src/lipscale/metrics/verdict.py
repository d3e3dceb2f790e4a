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
    tolerance, error = _points(scores.calibration_tolerance), _points(scores.calibration_error)
    if scores.calibrated is None:
        few, needed = f"{samples:,}", f"{scores.samples_to_decide:,}"
        verdict = (
            f"{few} test samples cannot decide whether it is calibrated to within {tolerance}: confidence and accuracy "
            f"differ by {error} on average, somewhere from {_points(low, unit=False)} to {_points(high)}; about "
            f"{needed} would decide."
        )
    elif scores.calibrated:
        verdict = (
            f"It is calibrated to within {tolerance}: confidence and accuracy differ by {error} on average, with 95 % "
            f"confidence by at most {_points(high)}."
        )
    else:
        verdict = (
            f"It is not calibrated to within {tolerance}: confidence and accuracy differ by {error} on average, with "
            f"95 % confidence by at least {_points(low)}."
        )
    return f"{verdict} {_direction(scores)}"


def _direction(scores: Scores) -> str:
    low, high = scores.intervals.esce
    ends = sorted((abs(low), abs(high)))
    if low > 0 or high < 0:
        side = "high" if low > 0 else "low"
        return (
            f"Its confidence is {_points(abs(scores.esce))} too {side} (95 % interval {_points(ends[0], unit=False)} "
            f"to {_points(ends[1])})."
        )
    return (
        "As a whole it is neither clearly over- nor under-confident: confidence minus accuracy is "
        f"{100 * scores.esce:+.1f} points (95 % interval {100 * low:+.1f} to {100 * high:+.1f})."
    )


def temperature_sentence(temperature: float, interval: Interval, p_value: float) -> str:
    """T on the test set, its interval, and the test of T = 1."""
    if math.isinf(temperature):
        return "On the test set it is no better than chance, so that no temperature would mend it."
    low, high = interval
    end = "no upper limit" if math.isinf(high) else f"{high:.2f}"
    p = "below 0.001" if p_value < 0.001 else f"{p_value:.3f}"
    meaning = "T = 1 is calibrated, above is over-confident"
    return (
        f"The temperature that fits the test set is T = {temperature:.2f} (95 % interval {low:.2f} to {end}; p-value "
        f"of T = 1 {p}; {meaning})."
    )


def as_good_as_its_set(scores: Scores, calibration_size: int) -> str:
    """Whether the ECE is within what a T* from so few calibration samples leaves; never the first sentence."""
    if calibration_size == 0:
        allowed = "a calibrated model on as many test samples"
    else:
        allowed = f"a temperature from {calibration_size:,} calibration samples"
    relation = "is no larger" if scores.as_calibrated_as_its_set else "is larger"
    return (
        f"Its ECE of {scores.ece:.4f} {relation} than {allowed} would leave in 95 % of cases ({scores.ece_limit:.4f})."
    )


def _points(share: float, *, unit: bool = True) -> str:
    """0.0136 -> 1.4 points."""
    value = f"{100 * share:.1f}".removesuffix(".0")
    return f"{value} point{'' if value == '1' else 's'}" if unit else value
