"""The claims, fed with runs of which the answer is known, and the intervals that they rest on."""

import math
import re
import statistics
from types import SimpleNamespace

import pytest
import torch
from scipy import stats

from experiment_makers import fake
from lipscale.experiments import claims
from lipscale.experiments.claims import FAILS, HOLDS, OPEN
from lipscale.experiments.intervals import crossed_half_width, half_width
from lipscale.experiments.profiles import SMOKE


class TestClaims:
    """Each claim is fed with runs of which the answer is known."""

    class Given:
        """Results that are made up, by the row's name."""

        def __init__(self, make):
            self.make = make

        def of(self, row):
            return [result for k in range(len(row.runs)) if (result := self.make(row, k)) is not None]

    def decide(self, claim, make, data=SMOKE.main):
        verdict = claim(SMOKE, self.Given(make), data)
        assert verdict.claim
        assert verdict.test
        assert re.search(r"\d", verdict.figures)
        return verdict.verdict

    @staticmethod
    def constant(row):
        return float(row.name.split("= ")[1].rstrip(")"))

    def test_u_shape(self):
        def shape(signed):
            def make(row, k):
                esce = signed(math.log2(self.constant(row)))
                ends = {"ece": [abs(esce) - 0.01, abs(esce) + 0.01], "esce": [esce - 0.01, esce + 0.01]}
                return fake(ece=abs(esce), esce=esce, intervals=SimpleNamespace(**ends))

            return make

        assert self.decide(claims.ece_is_u_shaped, shape(lambda x: 0.1 * (x - 1))) == HOLDS
        assert self.decide(claims.ece_is_u_shaped, shape(lambda x: 0.1 * (x + 9))) == FAILS  # always over-confident
        assert self.decide(claims.ece_is_u_shaped, shape(lambda x: 0.1 * abs(x - 1))) == FAILS

    def test_crossing(self):
        generator = torch.Generator().manual_seed(0)
        logits = 2 * torch.randn(4000, 5, dtype=torch.float64, generator=generator)
        labels = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator).squeeze(1)

        def with_temperature(of):
            def make(row, k):
                t = of(math.log2(self.constant(row)))
                return fake(temperature=t, answers=SimpleNamespace(logits=logits * t, labels=labels))

            return make

        assert self.decide(claims.temperature_crosses_once, with_temperature(lambda x: 2 ** (x - 1))) == HOLDS
        assert self.decide(claims.temperature_crosses_once, with_temperature(lambda x: 2 ** math.sin(x))) == FAILS
        assert self.decide(claims.temperature_crosses_once, with_temperature(lambda x: 2 ** (1 - x))) == FAILS
        # a grid that ends before the crossing, or whose T* are all 1 as far as one can tell
        assert self.decide(claims.temperature_crosses_once, with_temperature(lambda x: 2 ** (x + 9))) == OPEN
        assert self.decide(claims.temperature_crosses_once, with_temperature(lambda x: 1.0)) == OPEN

    def test_start(self):
        def spread(by, error=0.02, sign=lambda k: 1):
            def make(row, k):
                last = SimpleNamespace(temperature_error=error)
                return fake(constant=3 + sign(k) * by * math.log10(self.constant(row)), phase_one=[last])

            return make

        assert self.decide(claims.start_does_not_matter, spread(0.02)) == HOLDS
        assert self.decide(claims.start_does_not_matter, spread(0.2)) == FAILS
        assert self.decide(claims.start_does_not_matter, spread(0.05, error=0.2)) == OPEN  # too small to be resolved
        assert self.decide(claims.start_does_not_matter, spread(0.05, error=None)) == OPEN
        # spreads of single seeds count, even where they cancel in the mean
        assert self.decide(claims.start_does_not_matter, spread(0.2, sign=lambda k: (-1) ** k)) == FAILS

    def test_retraining(self):
        def made(calibrated):
            return lambda row, k: fake(constant=2.0, ece=0.1, limit=0.05, calibrated=calibrated(k))

        assert self.decide(claims.retraining_fails, made(lambda k: False)) == HOLDS
        assert self.decide(claims.retraining_fails, made(lambda k: True)) == FAILS
        assert self.decide(claims.retraining_fails, made(lambda k: k == 0)) == OPEN

    def test_front(self):
        def front(gain, calibrated=lambda xi: True):
            def make(row, k):
                xi = self.constant(row)
                run = fake(accuracy=0.8, ece=0.01, calibrated=calibrated(xi))
                run.certified = lambda eps: (0.5 if eps < 0.2 else 0.3) + gain * xi + 0.001 * (k - 2) * (1 + xi)
                return run

            return make

        assert self.decide(claims.offset_front_is_calibrated, front(0.05)) == HOLDS
        assert self.decide(claims.offset_front_is_calibrated, front(-0.05)) == FAILS
        assert self.decide(claims.offset_front_is_calibrated, front(0.05, lambda xi: xi < 3)) == FAILS
        assert self.decide(claims.offset_front_is_calibrated, front(0.0)) == OPEN

    def test_best(self):
        def eces(ours, best, noise=0.001):
            def make(row, k):
                ece = ours if row.name.startswith("LiST") else best if row.name == "L = 4" else 0.2
                return fake(ece=ece + (noise if row.name.startswith("LiST") else 0.001) * k)

            return make

        assert self.decide(claims.list_is_best, eces(0.01, 0.05)) == HOLDS
        assert self.decide(claims.list_is_best, eces(0.05, 0.05)) == HOLDS
        assert self.decide(claims.list_is_best, eces(0.05, 0.01)) == FAILS
        assert self.decide(claims.list_is_best, eces(0.02, 0.01, noise=0.04)) == OPEN  # noise is no merit

    def test_phases(self):
        generator = torch.Generator().manual_seed(0)

        def phases(gain, kept=True, ever=True):
            def make(row, k):
                after = row.name != "I"
                right = torch.rand(20000, generator=generator) < 0.6 + gain * after
                answers = SimpleNamespace(right=right, certified=right * 0.2)
                stays = kept(k) if callable(kept) else kept
                return fake(answers=answers, ece=0.01, calibrated=ever and (stays or not after))

            return make

        assert self.decide(claims.phase_two_helps, phases(0.05)) == HOLDS
        assert self.decide(claims.restart_helps, phases(0.05)) == HOLDS
        assert self.decide(claims.phase_two_helps, phases(-0.05)) == FAILS
        assert self.decide(claims.phase_two_helps, phases(0.05, kept=False)) == FAILS
        assert self.decide(claims.phase_two_helps, phases(0.05, kept=lambda k: k > 0)) == HOLDS  # all but one
        assert self.decide(claims.phase_two_helps, phases(0.0)) == OPEN
        assert (
            self.decide(claims.phase_two_helps, phases(0.05, ever=False)) == OPEN
        )  # none was calibrated to begin with

    def test_low_data(self):
        def grows(slope):
            return lambda row, k: fake(constant=10 + slope * math.log10(self.constant(row)) + 0.01 * k)

        assert self.decide(claims.less_data_smaller_constant, grows(1.0)) == HOLDS
        assert self.decide(claims.less_data_smaller_constant, grows(-1.0)) == FAILS
        assert self.decide(claims.less_data_smaller_constant, grows(0.0)) == OPEN

    def test_stop(self):
        def settles(curve):
            constants = [1.0, *map(curve, range(3000))]
            return lambda row, k: fake(phase_one=range(3000), constants=constants)

        assert self.decide(claims.stop_is_robust, settles(lambda e: 3 + math.exp(-e / 50))) == HOLDS
        assert self.decide(claims.stop_is_robust, settles(lambda e: (e + 1) ** -0.04)) == FAILS  # drifts for ever
        assert self.decide(claims.stop_is_robust, settles(lambda e: 3 + e % 2)) == OPEN  # never fires

    def test_one_seed_or_a_missing_one_decides_nothing_that_seeds_must_decide(self):
        assert half_width([1.0]) == half_width([1.0], [2.0, 3.0]) == math.inf
        # scipy's own interval
        values, others = [1.0, 2.0, 4.0], [0.5, 0.6, 0.9, 0.2]
        low, high = stats.ttest_ind(values, others, equal_var=False).confidence_interval(0.95)
        assert half_width(values, others) == pytest.approx((high - low) / 2)
        low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert half_width(values) == pytest.approx((high - low) / 2)
        missing = self.Given(lambda row, k: fake(constant=1.0) if k else None)
        verdicts = {v.verdict for v in claims.decide_claims(SMOKE, missing)}
        assert verdicts == {OPEN}

    def test_the_interval_over_seeds_and_samples_covers_the_truth(self):
        generator = torch.Generator().manual_seed(0)

        def normal(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        # seeds, samples and the rest, each of them the largest part once; the truth is 0
        for seed, sample, rest in ((1.0, 0.1, 0.1), (0.01, 3.0, 0.1), (0.01, 0.1, 9.0), (0.2, 4.0, 9.0)):
            draws = [seed * normal(5, 1) + sample * normal(1, 200) + rest * normal(5, 200) for _ in range(400)]
            covered = [abs(float(draw.mean())) <= crossed_half_width(draw) for draw in draws]
            assert 0.93 <= statistics.mean(covered) <= 1  # never too narrow; wide where seeds matter little
        assert crossed_half_width(normal(1, 200)) == math.inf

    def test_what_is_not_there_is_not_decided(self):
        verdicts = claims.decide_claims(SMOKE, self.Given(lambda row, k: None))
        assert {v.verdict for v in verdicts} == {OPEN}
        assert len({v.claim for v in verdicts}) >= 11
