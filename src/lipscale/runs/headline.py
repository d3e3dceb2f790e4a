"""A run at first sight: the verdict in a line and five numbers, the same in a terminal, a notebook and a report."""

from typing import Literal, NamedTuple

from lipscale.metrics.verdict import percent, points
from lipscale.runs.evaluation import Metrics
from lipscale.training.epoch import counted

SETTLED = {True: "it has settled", False: "it had not settled", None: "no feedback"}


class Headline(NamedTuple):
    """The verdict in a line, and whether it is good news, bad news or still open."""

    text: str
    tone: Literal["good", "bad", "open"]


class Cell(NamedTuple):
    """A value, and in small print what to hold it against: its 95 % interval, mostly."""

    value: str
    note: str = ""


def headline(metrics: Metrics) -> Headline:
    """Whether the probabilities can be trusted, and whether anything is proven."""
    within = f"calibrated to within {points(metrics.calibration_tolerance)}"
    proof = "certified" if metrics.is_certified else "without a certificate"
    if metrics.hollow:  # whatever else is good about it
        return Headline(f"{metrics.hollow}: its accuracy deceives", "bad")
    if metrics.calibrated is None:
        return Headline(f"{proof}; {metrics.test_size:,} test samples cannot tell whether it is {within}", "open")
    return Headline(f"{within}, {proof}", "good") if metrics.calibrated else Headline(f"not {within}, {proof}", "bad")


def first_numbers(metrics: Metrics) -> dict[str, Cell]:
    """What people come for: accuracy, calibration, what is proven, L, and the time that it took."""
    low, high = map(percent, metrics.intervals.accuracy)
    rate = metrics.majority_rate
    beside = "" if rate is None else f"; always {metrics.commonest!r}: {percent(rate)}"
    limit = points(metrics.calibration_error_limits[1])
    trained = counted(metrics.phase1_epochs + metrics.phase2_epochs, "epoch")
    # where all data steer L in turns, what calibrates is what trains
    in_turns = metrics.calibration_size == metrics.train_size
    samples = metrics.train_size + (0 if in_turns else metrics.calibration_size)
    proven = next(iter(metrics.certified_accuracy.items()), None) if metrics.is_certified else None
    constant = metrics.lipschitz_constant
    return {
        "accuracy": Cell(percent(metrics.accuracy), f"{low} to {high}{beside}"),
        "calibration error": Cell(
            points(metrics.calibration_error), f"at most {limit}, on {metrics.test_size:,} test samples"
        ),
        f"certified accuracy at {proven[0]}" if proven else "certified accuracy": Cell(
            percent(proven[1]) if proven else "none", "correct, and proven to stay so" if proven else "unconstrained"
        ),
        "Lipschitz constant L": Cell("none" if constant is None else f"{constant:.4g}", SETTLED[metrics.settled]),
        "training time": Cell(f"{metrics.seconds:.0f} s", f"{trained}, {samples:,} samples"),
    }
