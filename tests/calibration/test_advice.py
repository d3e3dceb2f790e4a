"""What is said of a calibration set that is too small: true for every error, and with a number that means something."""

import math

import pytest
import torch

from lipscale.calibration.advice import cannot_steer, poor_resolution
from lipscale.calibration.temperature import Temperature, measure_temperature


def advice(error, *, temperature=1.0, size=100, right=80, guessed=0.1):
    return poor_resolution(Temperature(temperature, error), size, right=right, guessed=guessed)


def test_a_good_set_needs_no_advice():
    assert advice(0.25) is None
    assert advice(0.26) is not None


@pytest.mark.parametrize(("size", "right"), [(100, 80), (8, 4)])
def test_where_errors_are_common_the_number_is_an_estimate(size, right):
    assert f"about {9 * size} would know it to 10%: use" in advice(0.3, size=size, right=right)


def test_where_errors_are_rare_it_is_a_lower_limit():
    assert "at least 126 would know it to 10%, and more if errors stay as rare (1 here)" in advice(
        0.3, size=14, right=13
    )


@pytest.mark.parametrize("samples", [10, 100, 1000])
def test_a_separable_set_ten_times_as_large_is_not_ten_times_as_informative(samples):
    """Which is why the number is a lower limit there: s falls more slowly than 1 / sqrt(n)."""

    def error(n):
        labels = torch.arange(n) % 10
        logits = torch.randn(n, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        logits[torch.arange(n), labels] += 9
        return measure_temperature(logits, labels)

    few = error(samples)
    enough = few.samples_for(few.error / math.sqrt(10), measured_on=samples)
    assert enough == pytest.approx(10 * samples, abs=1)
    assert error(enough).error > 1.2 * few.error / math.sqrt(10)


@pytest.mark.parametrize("error", [1.0, 1886.0, math.inf])
def test_where_the_network_may_be_guessing_it_is_said_with_what_would_tell(error):
    said = advice(error, temperature=math.inf, size=30, right=12, guessed=1 / 3)
    assert "cannot tell the network from chance (40% of them are right, 33% by guessing)" in said
    needed = 200  # (0.4 - 1/3) is two standard deviations, sqrt(1/3 2/3 / n), for this n
    assert (0.4 - 1 / 3) / math.sqrt(2 / 9 / needed) == pytest.approx(2)
    assert f"about {needed} could" in said


@pytest.mark.parametrize("right", [8, 10])
def test_below_chance_no_number_of_samples_would_help(right):
    said = advice(math.inf, size=30, right=right, guessed=1 / 3)
    assert said.endswith("so L means little: use more data or a larger `calibration_fraction`, or a better model")


def test_where_all_data_steer_a_larger_share_is_no_way_out():
    said = poor_resolution(Temperature(1.0, 0.3), 60, right=50, guessed=0.1, is_all=True)
    assert said.endswith("would know it to 10%: use more data")


@pytest.mark.parametrize(
    ("temperature", "words"),
    [
        (0.0, "none of the 8 calibration samples is misclassified: T* = 0 can only tell L to grow."),
        (
            math.inf,
            "the network is no better than chance on the 8 calibration samples: T* = inf can only tell L to shrink.",
        ),
        (
            7.0,
            "the network is hardly better than chance on the 8 calibration samples: T* = 7 can only tell L to shrink.",
        ),
    ],
)
def test_a_degenerate_temperature_is_named(temperature, words):
    assert cannot_steer(temperature, size=8).startswith(words)
    assert "a factor of 2 an epoch and 64 in all" in cannot_steer(temperature, size=8)
    assert cannot_steer(temperature, size=8, held=True).endswith(
        "T* says nothing yet, and L stays at what it is until it does"
    )


def test_a_temperature_that_few_errors_leave_unknown_is_not_blamed_on_chance():
    assert cannot_steer(0.4, size=144, wrong=0).startswith("none of the 144 calibration samples is misclassified")
    assert cannot_steer(0.4, size=144, wrong=1).startswith("only 1 of the 144 calibration samples is misclassified")
    assert cannot_steer(7.0, size=144, wrong=120).startswith("the network is hardly better than chance")
    assert "at least" in advice(1.4, size=144, right=143)
