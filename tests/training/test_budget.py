"""A budget in minutes: the width and the epochs that fill it, measured as the training itself will go."""

import re
import time

import pytest
import torch

from lipscale import UserError, models
from lipscale.data import Dataset, Samples, prepare
from lipscale.runs import assembly
from lipscale.settings import Settings
from lipscale.training import budget
from lipscale.training.budget import GROWTH, WIDTHS, enough_epochs, fit_to_time, seconds_of


def test_it_takes_the_widest_network_that_sees_the_data_often_enough():
    def cost(width):
        return 0.01 * width**GROWTH, 0.0

    for seconds in (60.0, 500.0, 5000.0, 1e6):
        width, epochs = fit_to_time(seconds, cost)
        assert width == max(w for w in WIDTHS if 0.96 * seconds / cost(w)[0] >= enough_epochs(w))
        assert epochs == pytest.approx(0.96 * seconds / cost(width)[0], abs=1.01)
        assert cost(width)[0] * epochs <= seconds


def test_wide_networks_must_see_the_data_more_often():
    assert [enough_epochs(width) for width in (16, 48, 64, 128, 256)] == [10, 10, 12, 25, 51]


def test_the_smallest_network_gets_what_there_is():
    assert fit_to_time(10.4, lambda width: (0.1 * width, 0.0)) == (16, 6)


def test_a_width_that_is_given_stays():
    assert fit_to_time(100.0, lambda width: (2.0, 1.0), width=20) == (20, 47)
    assert fit_to_time(100.0, lambda width: (2.0, 21.0), is_scalable=False) == (None, 37)


def test_no_time_for_an_epoch_is_an_error_with_the_way_out():
    why = r"0.017 minutes hold no whole epoch.*4 s here, with .* to begin.*of 0.14 or more, or fewer samples"
    with pytest.raises(UserError, match=why):
        fit_to_time(1.0, lambda width: (4.0, 0.0), is_scalable=False)


@pytest.mark.parametrize(("taken", "once"), [(0.1, 20.0), (0.001, 5.0), (60.0, 3.0), (0.01, 0.0)])
def test_the_way_out_is_one(taken, once):
    with pytest.raises(UserError) as raised:
        fit_to_time(0.001, lambda width: (taken, once), is_scalable=False)
    minutes = float(re.search(r"give `minutes` of ([\d.]+) or more", str(raised.value)).group(1))
    assert fit_to_time(60 * minutes, lambda width: (taken, once), is_scalable=False)[1] >= 1


def test_an_epoch_is_timed_on_the_training_itself(digits_split):
    from conftest import training_of

    training = training_of(models.mlp(10, (1, 8, 8), 8), *digits_split, Settings(epochs=1, batch_size=32))
    taken = seconds_of(training.net, training.train, training.calibration, {"epochs": 1, "batch_size": 32})
    assert taken > 0
    few = training_of(models.mlp(10, (1, 8, 8), 8), *digits_split, Settings(epochs=1, batch_size=300))
    assert len(few.train) == 1  # batch, fewer than are timed
    assert seconds_of(few.net, few.train, few.calibration, {"epochs": 1, "batch_size": 300}) > 0


def test_measuring_takes_no_more_than_a_share_of_the_budget(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("lipscale._processes.clock", lambda: now[0])

    def slow_to_measure(width):
        now[0] += 2.0
        return 0.01, 0.0

    width, epochs = fit_to_time(10.0, slow_to_measure)
    assert now[0] == 2.0  # a second measurement would be too much
    assert (width, epochs) == (32, int((9.6 - 2.0) / 0.01))


def planned(**changes):
    """The settings of 300 rows after their speed was measured for real."""
    part = Samples(torch.rand(300, 4, generator=torch.Generator().manual_seed(0)), torch.arange(300) % 2)
    dataset, preprocessing = prepare(Dataset("rows", part, part, ("a", "b")))
    settings = assembly.resolve(Settings(minutes=1, **changes), dataset, preprocessing)
    return assembly.within_minutes(settings, dataset, preprocessing, started=time.perf_counter())


def test_the_plan_fills_the_minutes_and_no_more(monkeypatch):
    monkeypatch.setattr(assembly, "seconds_of", lambda *_: 0.5)
    settings = planned()
    assert 0.8 * 60 < 0.5 * settings.epochs + assembly.REPORTED < 60


def test_speed_is_measured_with_the_threads_that_train(monkeypatch):
    before, seen = torch.get_num_threads(), []
    step = budget.train_step
    monkeypatch.setattr(budget, "train_step", lambda *a: seen.append(torch.get_num_threads()) or step(*a))
    torch.set_num_threads(2)
    try:
        assert planned(width=8).epochs > 1
        assert set(seen) == {1}  # as of every small dense network
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("method", "epochs"), [("list", 2), ("fixed", 12), ("standard", 12)])
def test_only_list_has_a_second_phase_to_leave_time_for(method, epochs, monkeypatch):
    monkeypatch.setattr(assembly, "fit_to_time", lambda *_, **__: (8, 12))
    assert planned(method=method, phase2_epochs=10).epochs == epochs
