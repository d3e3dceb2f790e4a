"""The feedback rules and their stops: on hand-made sequences, and on 300 random problems that fight back."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipscale.calibration.feedback import (
    PaperFeedback,
    SteadyFeedback,
    has_settled,
    is_resolved,
    next_constant,
)
from lipscale.errors import UserError


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
    feedback = PaperFeedback(0.01)
    while not feedback.settled:
        feedback.update((feedback.constant / 30) ** 0.3)
        assert len(feedback.constants) < 500
    assert feedback.constant == pytest.approx(30, rel=2e-3)


@pytest.mark.parametrize("kind", [PaperFeedback, SteadyFeedback])
@pytest.mark.parametrize(("temperature", "limit"), [(0.0, 64), (math.inf, 1 / 64)])
def test_degenerate_temperatures_move_a_bounded_step_and_a_bounded_total(kind, temperature, limit):
    feedback = kind(3.0)
    previous = 3.0
    for _ in range(50):
        constant = feedback.update(temperature, 0.3)
        assert 1 / 2 <= constant / previous <= 2
        previous = constant
    assert constant == pytest.approx(3.0 * limit)
    assert not feedback.settled  # L stands still, but nothing has steered it there
    assert feedback.final == feedback.constant


@given(st.lists(st.sampled_from([0.0, math.inf, 0.5, 2.0]), max_size=60))
def test_degenerate_steps_never_exceed_their_total_in_any_order(temperatures):
    feedback, by_rule = PaperFeedback(1.0), 1.0
    for t in temperatures:
        feedback.update(t)
        by_rule = by_rule / t if t in (0.5, 2.0) else by_rule
        assert feedback.constant / by_rule * (1 + 1e-9) >= 1 / 64
        assert feedback.constant / by_rule <= 64 * (1 + 1e-9)


@pytest.mark.parametrize("kind", [PaperFeedback, SteadyFeedback])
def test_degenerate_steps_to_and_fro_come_to_rest(kind):
    """Each change of direction halves the step: 1, -1/2, 1/4, ... doublings, which sum to 2/3."""
    feedback = kind(3.0)
    for k in range(60):
        feedback.update(math.inf if k % 2 else 0.0)
    assert feedback.constant == pytest.approx(3.0 * 2 ** (2 / 3))


@pytest.mark.parametrize("wrong", [math.nan, -1.0])
def test_what_is_no_temperature_is_refused(wrong):
    with pytest.raises(UserError, match=r"expected T\* >= 0"):
        SteadyFeedback(1.0).update(wrong)


def test_a_window_of_one_is_no_window():
    with pytest.raises(UserError, match="window >= 2, got 1"):
        PaperFeedback(1.0, window=1)


class TestSteady:
    def test_a_consistent_signal_is_followed_as_the_paper_does(self):
        steady, paper = SteadyFeedback(8.0), PaperFeedback(8.0)
        for t in (1.5, 1.2, 1.1, 1.05):
            assert steady.update(t, 0.05) == pytest.approx(paper.update(t))

    def test_a_change_of_sides_halves_the_gain_and_agreement_restores_it(self):
        feedback = SteadyFeedback(1.0)
        feedback.update(0.9, 0.1)
        assert feedback.update(1.1, 0.1) == pytest.approx(1 / 0.9 / 1.1**0.5)
        for _ in range(20):
            feedback.update(1.01, 0.1)
        assert feedback.gain == 1

    def test_an_untrained_network_cannot_throw_l_far(self):
        feedback = SteadyFeedback(1.0)
        assert feedback.update(1e-6, 0.1) == pytest.approx(2)
        assert feedback.update(1e6, 0.1) >= 1 / 2

    @pytest.mark.parametrize("start", [1e-4, 0.01, 0.1, 1.0, 10.0, 1e4])
    def test_a_poor_start_is_forgotten_after_an_epoch(self, start):
        """T* is relative to L, and L / T* does not depend on L0: so neither does the first step, up to twice 1."""
        for wanted in (0.6, 1.0, 1.9):
            assert SteadyFeedback(start).update(start / wanted, 0.1) == pytest.approx(wanted)
        assert SteadyFeedback(start).update(start / 1e9, 0.1) == pytest.approx(2 * max(start, 1))
        assert SteadyFeedback(start).update(start / 1e-9, 0.1) == pytest.approx(min(start, 1) / 2)

    def test_noise_is_not_chased(self):
        rng = random.Random(0)
        steady, paper = SteadyFeedback(10.0), PaperFeedback(10.0)
        for _ in range(60):
            noise = rng.gauss(0, 0.1)
            steady.update(steady.constant / 10 * math.exp(noise), 0.1)
            paper.update(paper.constant / 10 * math.exp(noise), 0.1)
        late = slice(30, None)
        assert spread(steady.constants[late]) < spread(paper.constants[late]) / 5

    def test_the_stop_compares_the_second_half_of_the_run_with_the_resolution(self):
        assert not is_resolved([5.0] * 9, 0.1)  # too early to tell
        assert is_resolved([5.0] * 10, 0.1)
        assert is_resolved([9.0] * 10 + [5.0] * 10, 0.1)
        assert not is_resolved([9.0] * 11 + [5.0] * 9, 0.1)
        assert not is_resolved([5.0] * 19 + [5.0 * 1.11], 0.1)

    def test_the_stop_counts_the_doublings_that_the_budget_still_holds(self):
        constants = [5.0] * 25 + [5.0 * math.exp(-0.04)] * 25
        assert is_resolved(constants[:-1], 0.05)
        assert is_resolved(constants[:-1], 0.05, budget=100)  # one doubling is left
        assert not is_resolved(constants[:-1], 0.05, budget=200)  # two are, and each may move as much
        assert is_resolved(constants[:-1], 0.09, budget=200)
        assert not is_resolved([5.0] * 39, 0.05, budget=400)  # L may be about to turn
        assert is_resolved([5.0] * 40, 0.05, budget=400)

    @pytest.mark.parametrize("contraction", [0.02, 0.1])
    def test_what_the_stop_leaves_is_less_than_the_calibration_set_can_tell(self, contraction):
        """L rises, turns, and contracts as the logarithm of time, as it does under ScheduleFree."""
        feedback, error, budget = SteadyFeedback(1.0, budget=400), 0.06, 400
        course = [4 * min(1, (e + 1) / 8) * max(e + 1, 10) ** -contraction for e in range(budget)]
        for wanted in course:
            feedback.update(feedback.constant / wanted, error)
            if feedback.settled:
                break
        assert len(feedback.constants) >= 40
        assert abs(math.log(course[-1] / feedback.final)) < error

    @pytest.mark.parametrize(("contraction", "stops"), [(0.05, True), (0.2, False)])
    def test_a_contraction_is_followed_as_long_as_a_doubling_of_the_run_would_show(self, contraction, stops):
        """L* = 4 e^-b, as on Fashion-MNIST: twice the epochs move log L* by b log 2, which s resolves or does not."""
        feedback, error = SteadyFeedback(4.0), 0.06
        for epoch in range(1, 500):
            feedback.update(feedback.constant / (4 * epoch**-contraction), error)
            assert feedback.constant == pytest.approx(4 * epoch**-contraction)
            if feedback.settled:
                break
        assert (contraction * math.log(2) < error) == stops == (epoch < 50)

    def test_the_frozen_constant_is_the_end_of_the_last_fifths_trend(self):
        """A network whose L* still rises by 1 % an epoch is not answered with the mean of the past."""
        feedback = SteadyFeedback(1.0)
        for epoch in range(40):
            feedback.update(feedback.constant / 1.01**epoch, 0.1)
        assert feedback.final == pytest.approx(1.01**39)

    def test_where_phase_two_still_learns_the_trend_goes_on(self):
        feedback = SteadyFeedback(1.0, ahead=1.5)
        for epoch in range(40):
            feedback.update(feedback.constant / 1.01**epoch, 0.1)
        assert feedback.final == pytest.approx(1.01**40.5)

    def test_one_noisy_epoch_does_not_decide_on_the_frozen_constant(self):
        feedback = SteadyFeedback(10.0)
        for _ in range(39):
            feedback.update(1.0, 0.1)
        feedback.update(math.exp(0.12), 0.1)
        # of eight values the last has the weight 1/8 + 3.5^2 / 42 in the end of the line
        assert math.log(feedback.final / 10) == pytest.approx(-0.12 * (1 / 8 + 3.5**2 / 42))

    @pytest.mark.parametrize("epochs", [1, 3, 14])
    def test_after_a_tiny_budget_the_last_request_is_frozen(self, epochs):
        """Up to two requests are no trend: neither an end nor a way ahead can be read from them."""
        feedback = SteadyFeedback(1.0, ahead=1.5)
        for wanted in range(1, epochs + 1):
            feedback.update(feedback.constant / wanted, 0.1)
        assert feedback.final == pytest.approx(epochs)

    @pytest.mark.parametrize(("temperature", "error"), [(7.0, 94.0), (1.04, 5.0), (0.97, 5.0), (math.inf, math.inf)])
    def test_while_t_knows_nothing_l_stays(self, temperature, error):
        """Near chance T* is finite, but anything; so many epochs of it must not carry L away."""
        feedback = SteadyFeedback(6.0)
        for _ in range(50):
            assert feedback.update(temperature, error) == 6.0
        assert not feedback.settled

    def test_a_poor_measurement_beyond_its_error_names_a_direction_only(self):
        feedback = SteadyFeedback(1.0)
        for _ in range(50):
            assert feedback.update(20.0, 1.5) >= feedback.constant / 2
        assert feedback.constant == pytest.approx(1 / 64)
        assert not feedback.settled

    @pytest.mark.parametrize(("last", "final"), [(7.0, 6 / 7), (math.inf, 6 / 64), (0.4, 6.0)])
    def test_who_knew_nothing_to_the_end_says_so(self, last, final):
        """Calibration asks for L / T*, at the end of the training: there is nothing left to learn at a larger L."""
        feedback = SteadyFeedback(6.0)
        for _ in range(40):
            feedback.update(last, math.inf)
        assert feedback.final == pytest.approx(final)

    @pytest.mark.parametrize("last", [(math.inf, math.inf), (3.0, 50.0)])
    def test_a_last_epoch_that_knows_nothing_does_not_decide_on_the_frozen_constant(self, last):
        feedback = SteadyFeedback(1.0)
        for epoch in range(39):
            feedback.update(feedback.constant / 1.01**epoch, 0.1)
        feedback.update(*last)
        assert feedback.final == pytest.approx(1.01**39)  # the trend goes on through the epoch without a request

    def test_where_most_of_the_last_epochs_knew_nothing_the_last_of_them_decides(self):
        feedback = SteadyFeedback(1.0)
        for epoch in range(40):
            feedback.update(*((0.9, 0.1) if epoch < 35 else (3.0, math.inf)))
        assert feedback.final == pytest.approx(feedback.constant / 3)


def spread(constants):
    return math.log(max(constants) / min(constants))


class Problem:
    """A stand-in for a network: log T* = a (log L(e - delay) - log L*(e)) + noise, with drift and degenerate spells."""

    def __init__(self, seed):
        rng = self.rng = random.Random(seed)
        self.start = 10 ** rng.uniform(-2, 2)
        self.target = 10 ** rng.uniform(-1, 2)
        self.slope = rng.uniform(0.2, 1.0)
        self.delay = rng.choice([0, 0, 1, 2, 3])
        self.error = rng.uniform(0.01, 0.5)
        self.noise = self.error * rng.uniform(0, 0.5)  # one calibration set: most of its error is the same every epoch
        self.drift = rng.choice([0.0, rng.uniform(-0.3, 0.3)])
        self.degenerate = rng.choice([0.0, 0.0, 0.3, 1.0])  # the share of epochs in which T* says nothing
        self.limits = rng.choice([(0.0,), (math.inf,), (0.0, math.inf)])

    def temperature(self, constants, epoch):
        if self.rng.random() < self.degenerate:
            return self.rng.choice(self.limits)
        acting = constants[max(0, len(constants) - 1 - self.delay)]
        log_target = math.log(self.target) + self.drift * math.log(1 + epoch)
        return math.exp(self.slope * (math.log(acting) - log_target) + self.rng.gauss(0, self.noise))


@pytest.mark.parametrize("seed", range(300))
def test_random_problems_stay_finite_and_settle(seed):
    """Whatever the response, its delay, drift and noise: L is finite, and comes to rest at the end of the run."""
    problem = Problem(seed)
    feedback, constants = SteadyFeedback(problem.start), [problem.start]
    for epoch in range(400):
        before = feedback.constant
        constants.append(feedback.update(problem.temperature(constants, epoch), problem.error))
        assert 0 < constants[-1] < math.inf
        assert min(before, 1) / 2 * (1 - 1e-9) <= constants[-1] <= max(before, 1) * 2 * (1 + 1e-9)
    assert 0 < feedback.final < math.inf
    # never oscillates for ever, degenerate or not: at the end L stays within an error of where it is, which may drift
    assert spread(constants[-40:]) < 2 * problem.error + abs(problem.drift) * math.log(400 / 360)
    if problem.degenerate == 1 and len(problem.limits) == 1:
        assert len(set(constants[-40:])) == 1
    if problem.degenerate < 1:
        log_target = math.log(problem.target) + problem.drift * math.log(400)
        assert abs(math.log(constants[-1]) - log_target) < 2 * problem.error + 0.1
    if problem.degenerate == 0:
        assert feedback.settled or abs(problem.drift) * math.log(2) > problem.error / 2


def after_noise():
    """Thirty epochs of noise have brought the gain down to plain averaging."""
    feedback = SteadyFeedback(1.0)
    for k in range(30):
        feedback.update(1.05 if k % 2 else 0.95, error=0.05)
    assert feedback.gain == pytest.approx(1 / 30)
    return feedback


def test_a_signal_that_persists_beyond_its_error_takes_the_gain_back_up():
    feedback = after_noise()
    for _ in range(4):
        feedback.update(0.93, error=0.05)
    assert feedback.gain < 0.1  # with the one before them their mean is within its error
    feedback.update(0.93, error=0.05)
    assert feedback.gain == 0.25


def test_a_signal_within_its_error_only_grows_the_gain_as_ever():
    feedback = after_noise()
    for _ in range(8):
        feedback.update(0.97, error=0.05)
    assert feedback.gain < 0.1
