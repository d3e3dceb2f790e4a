"""The feedback rule and its stop on hand-made sequences."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipscale.errors import UserError
from lipscale.feedback import DEGENERATE_STEP, DEGENERATE_TOTAL, Feedback, has_settled, next_constant


def test_the_rule():
    assert next_constant(6.0, 1.5) == 4.0
    assert next_constant(6.0, 0.5) == 12.0
    assert next_constant(6.0, 1.0) == 6.0


def test_the_stop_needs_a_full_window():
    assert not has_settled([5.0] * 29)
    assert has_settled([5.0] * 30)


def test_the_stop_is_relative_and_strict():
    # (3 - 1) / 2 is exactly the tolerance, which is not below it
    assert not has_settled([1.0, 3.0], window=2, tolerance=1.0)
    assert not has_settled([0.9994] * 15 + [1.0006] * 15)
    assert has_settled([0.9996] * 15 + [1.0004] * 15)
    assert has_settled([1e6 * 0.9996] * 15 + [1e6 * 1.0004] * 15)
    assert not has_settled([0.01] * 29 + [0.02])


def test_the_stop_forgets_what_left_the_window():
    assert has_settled([100.0] + [5.0] * 30)
    assert not has_settled([100.0] + [5.0] * 29)
    assert has_settled([1.0, 2.0, 2.0], window=2)


def test_a_monotone_response_is_driven_to_its_fixed_point():
    # a network that is calibrated at L = 30 and answers with T*(L) = (L / 30)^0.3
    feedback = Feedback(0.01)
    while not feedback.settled:
        feedback.update((feedback.constant / 30) ** 0.3)
        assert len(feedback.constants) < 500
    assert feedback.constant == pytest.approx(30, rel=2e-3)


@pytest.mark.parametrize(("temperature", "limit"), [(0.0, DEGENERATE_TOTAL), (math.inf, 1 / DEGENERATE_TOTAL)])
def test_degenerate_temperatures_move_a_bounded_step_and_a_bounded_total(temperature, limit):
    feedback = Feedback(3.0)
    previous = 3.0
    for _ in range(50):
        constant = feedback.update(temperature)
        assert 1 / DEGENERATE_STEP <= constant / previous <= DEGENERATE_STEP
        previous = constant
    assert constant == pytest.approx(3.0 * limit)
    assert not feedback.settled  # L stands still, but nothing has steered it there


@given(st.lists(st.sampled_from([0.0, math.inf, 0.5, 2.0]), max_size=60))
def test_degenerate_steps_never_exceed_their_total_in_any_order(temperatures):
    feedback, by_rule = Feedback(1.0), 1.0
    for t in temperatures:
        feedback.update(t)
        by_rule = by_rule / t if t in (0.5, 2.0) else by_rule
        assert feedback.constant / by_rule * (1 + 1e-9) >= 1 / DEGENERATE_TOTAL
        assert feedback.constant / by_rule <= DEGENERATE_TOTAL * (1 + 1e-9)


def test_a_window_of_one_is_no_window():
    with pytest.raises(UserError, match="window >= 2, got 1"):
        Feedback(1.0, window=1)
