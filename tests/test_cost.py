"""The estimate of a run's cost: monotone in what costs more, never far below the memory of a real run."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from lipscale.data import READERS
from lipscale.errors import UserError
from lipscale.experiments import cost
from lipscale.experiments.cost import SIZES, Line, Step, estimate, require_memory, size_of
from lipscale.runs.settings import Settings, replace

SMALL = Settings(data="fashion-mnist", limit=2000, model="mlp", width=32, epochs=10)


@pytest.fixture
def _steady_clock(monkeypatch):
    """A step whose time is known, so that no test depends on the machine."""
    step = Step(Line(0.01, 0.001), Line(1e6, 1e4), 10**6)
    monkeypatch.setattr(cost, "_step", lambda settings, size: step)


@pytest.mark.usefixtures("_steady_clock")
class TestSeconds:
    def test_it_grows_with_epochs_and_samples(self):
        base = estimate(SMALL).seconds
        assert estimate(replace(SMALL, epochs=20)).seconds > base
        assert estimate(replace(SMALL, limit=4000)).seconds > base
        assert estimate(replace(SMALL, limit=None)).seconds > estimate(replace(SMALL, limit=4000)).seconds

    def test_by_hand(self):
        """Fixed L: ten epochs of 2 batches of 100 (10 + 100 ms each), centring on both, then 10,000 test samples."""
        settings = replace(SMALL, method="fixed", limit=200, batch_size=100)
        expected = cost.START + 10 * (2 * 0.11 + 200 * 0.001 / 3) + 10000 * 0.001 / 3
        assert estimate(settings).seconds == pytest.approx(expected)

    def test_phase_two_counts_and_a_larger_batch_saves_only_the_fixed_part(self):
        assert estimate(replace(SMALL, phase2_epochs=5)).seconds > estimate(replace(SMALL, phase2_epochs=0)).seconds
        assert estimate(replace(SMALL, batch_size=256)).seconds < estimate(replace(SMALL, batch_size=16)).seconds
        assert (
            estimate(replace(SMALL, batch_size=512)).memory_bytes > estimate(replace(SMALL, batch_size=16)).memory_bytes
        )

    def test_what_does_not_fit_is_refused_with_a_way_out(self, monkeypatch):
        monkeypatch.setattr(cost, "available_memory", lambda: 10**8)
        with pytest.raises(UserError, match=r"about 0.\d+ GB .* 0.1 GB are free.*--batch-size than 128.*--width"):
            require_memory(SMALL)
        needed = estimate(SMALL).memory_bytes
        monkeypatch.setattr(cost, "available_memory", lambda: needed)
        assert require_memory(SMALL) == estimate(SMALL)
        with pytest.raises(UserError, match="2 runs like this.*give fewer runs at a time"):
            require_memory(SMALL, copies=2)

    def test_adversarial_training_pays_for_its_attacks(self):
        settings = replace(SMALL, method="standard")
        plain, attacked = (estimate(replace(settings, method=name)).seconds for name in ("standard", "pgd-at"))
        assert 5 < attacked / plain < 12


def test_a_wider_network_takes_more_memory():
    settings = replace(SMALL, data="digits", limit=None)
    narrow, wide = (
        cost._step(cost._essential(replace(settings, width=w), SIZES["digits"]), SIZES["digits"]) for w in (16, 256)
    )
    assert wide.state > narrow.state
    assert wide.saved.at(128) > narrow.saved.at(128)
    assert estimate(replace(settings, width=256)).memory_bytes > estimate(replace(settings, width=16)).memory_bytes


def test_the_line_goes_through_both_points_and_never_below_zero():
    line = Line.through((8.0 * 3 + 5, 32.0 * 3 + 5))
    assert (line.fixed, line.each) == (5.0, 3.0)
    assert Line.through((2.0, 1.0)) == Line(2.0, 0.0)
    assert Line.through((1.0, 32.0)).fixed == 0.0


def test_every_named_set_has_its_size(digits):
    assert set(SIZES) == set(READERS)
    size = SIZES["digits"]
    assert (size.train, size.test, size.shape) == (len(digits.train), len(digits.test), digits.input_shape)
    assert size.bytes == digits.train.inputs.nbytes + digits.test.inputs.nbytes


def test_own_data_are_read(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=rng.random((50, 7), dtype=np.float32), y=np.arange(50) % 5)
    size = size_of(Settings(data=str(tmp_path / "own.npz")))
    assert (size.train + size.test, size.classes, size.shape) == (50, 5, (7,))
    assert estimate(Settings(data=str(tmp_path / "own.npz"), width=8)).seconds > 0


@pytest.mark.slow
def test_memory_is_not_underestimated_by_more_than_a_fifth(tmp_path):
    settings = {"data": "digits", "epochs": 2, "model": "convnet", "width": 16, "out": str(tmp_path / "run")}
    code = (
        "import json, re, sys; from lipscale import Settings, train; train(Settings(**json.loads(sys.argv[1])));"
        # getrusage would tell the peak of the parent, too
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(settings)], capture_output=True, text=True, check=True, env=os.environ
    )
    peak = 1024 * int(done.stdout.split()[-1])
    assert estimate(Settings(**settings)).memory_bytes > 0.8 * peak


def test_the_measurement_leaves_the_random_numbers_alone():
    state = torch.get_rng_state()
    estimate(replace(SMALL, width=18))
    assert torch.equal(state, torch.get_rng_state())
