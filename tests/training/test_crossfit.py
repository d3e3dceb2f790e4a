"""Cross-fitting: no twin sees the part that it answers for, T* is that of all parts, and a stop loses nothing."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lipscale import models
from lipscale.bounds import get_lipschitz
from lipscale.calibration import measure_temperature
from lipscale.calibration.temperature import cautious_temperature
from lipscale.data import Samples
from lipscale.errors import StoppedError, UserError
from lipscale.settings import TrainingSettings
from lipscale.training import fit
from lipscale.training.batches import in_parts
from lipscale.training.defaults import calibrated
from lipscale.training.fitting import new_training
from lipscale.training.inference import predict


def samples(count=60, seed=0):
    """Two overlapping clouds, the second half as large."""
    labels = (torch.arange(count) % 3 == 0).long()
    noise = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return Samples(noise + labels[:, None], labels)


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return models.mlp(2, 4, 8, depth=1)


def rows(batches):
    return {tuple(row) for inputs, _ in batches.in_order() for row in inputs.tolist()}


SETTINGS = {"epochs": 4, "phase2_epochs": 1, "batch_size": 16}


@pytest.mark.parametrize("kind", [lambda s: s, lambda s: TensorDataset(s.inputs, s.labels)])
def test_the_parts_are_disjoint_complete_and_in_proportion(kind):
    parts = in_parts(kind(samples(61)), 5, seed=0)
    found = [tuple(part[i][0].tolist()) for part in map(as_pairs, parts) for i in range(len(part))]
    assert sorted(found) == sorted(map(tuple, samples(61).inputs.tolist()))
    for part in map(as_pairs, parts):
        assert len(part) in (12, 13)
        assert sum(int(part[i][1]) for i in range(len(part))) in (4, 5)


def as_pairs(part):
    return TensorDataset(part.inputs, part.labels) if isinstance(part, Samples) else part


def test_no_twin_sees_the_part_that_it_answers_for():
    training = new_training(network(), samples(), None, SETTINGS)
    assert len(training.cross_fit.twins) == 5
    for twin, part in zip(training.cross_fit.twins, training.cross_fit.parts, strict=True):
        assert not rows(twin.train) & rows(part)
        assert rows(twin.train) | rows(part) == rows(training.train)


def test_the_network_sees_all_data_and_t_is_measured_out_of_fold():
    result = fit(network(), samples(), progress=False, **SETTINGS)
    assert (result.train_size, result.calibration_size) == (60, 60)
    training = new_training(network(), samples(), None, SETTINGS)
    logits, labels = training.calibration_logits()  # one epoch of every twin
    assert sorted(labels.tolist()) == sorted(samples().labels.tolist())
    parts = [predict(t.net, p)[0] for t, p in zip(training.cross_fit.twins, training.cross_fit.parts, strict=True)]
    assert torch.equal(torch.cat(parts), logits)
    assert result.history[0].temperature == cautious_temperature(logits, labels)


def test_all_networks_are_held_at_one_constant():
    training = new_training(network(), samples(), None, SETTINGS)
    training.scheduler.step(*training.calibration_logits())
    for twin in training.cross_fit.twins:
        assert get_lipschitz(twin.net) == get_lipschitz(training.net)


@pytest.mark.parametrize("optimizer", ["adamw", "schedulefree"])
def test_a_stop_after_any_batch_loses_nothing(tmp_path, optimizer):
    whole = fit(network(), samples(), progress=False, optimizer=optimizer, **SETTINGS)
    path, done = tmp_path / "checkpoint.safetensors", None
    for _ in range(20):
        asked = iter([False, False, True])  # every third batch
        try:
            done = fit(
                network(),
                samples(),
                progress=False,
                optimizer=optimizer,
                checkpoint=path,
                should_stop=lambda asked=asked: next(asked, False),
                **SETTINGS,
            )
            break
        except StoppedError:
            pass
    assert done is not None
    for name, value in whole.net.state_dict().items():
        assert torch.equal(done.net.state_dict()[name], value), name
    assert [e.temperature for e in done.history] == [e.temperature for e in whole.history]


@pytest.mark.parametrize(
    ("count", "size", "cross_fit"),
    [(60, 12, True), (499, 100, True), (500, 100, False), (700, 100, False), (1000, 100, False), (1437, 144, False),
     (50_000, 5000, False), (60_000, 6000, False), (1_000_000, 10_000, False)],
)  # fmt: skip
def test_the_calibration_part_is_a_tenth_of_at_least_a_hundred_samples_or_all_in_turns(count, size, cross_fit):
    """From n samples T* costs a log-loss of 1 / (2 n): see FEEDBACK.md."""
    found = calibrated(TrainingSettings(), count)
    assert (round(found.calibration_fraction * count), found.cross_fit) == (size, cross_fit)


def test_who_names_a_share_gets_a_split_and_who_names_both_gets_as_many_turns():
    assert not calibrated(TrainingSettings(calibration_fraction=0.25), 60).cross_fit
    chosen = SETTINGS | {"calibration_fraction": 0.25, "cross_fit": True}
    assert len(new_training(network(), samples(), None, chosen).cross_fit.twins) == 4


def test_a_loader_is_split_and_what_cannot_take_turns_says_so():
    s = samples()
    loader = DataLoader(TensorDataset(s.inputs, s.labels), 16)
    assert new_training(network(), loader, None, SETTINGS).calibration.size == 12
    with pytest.raises(UserError, match="`cross_fit` takes samples in any order, but got a DataLoader: give a Dataset"):
        new_training(network(), loader, None, SETTINGS | {"cross_fit": True})
    with pytest.raises(UserError, match="3 samples cannot take turns in 5 parts: give more data"):
        new_training(network(), samples(3), None, SETTINGS)


def test_the_error_of_t_costs_half_a_sample_whatever_the_logits():
    """Log-loss at a T* from n samples lies 1 / (2 n) above that at the true T, in the mean: the rule's derivation."""
    stream = torch.Generator().manual_seed(0)
    for size in (0.5, 2.0):
        logits = size * torch.randn(8_000, 5, generator=stream, dtype=torch.float64)
        labels = logits.softmax(1).multinomial(1, generator=stream).squeeze(1)
        # labels from softmax(z): the true T is 1, and the excess is the mean Kullback-Leibler divergence
        logp, excess, n = logits.log_softmax(1), [], 50
        for at in range(0, 8_000, n):
            t = measure_temperature(logits[at : at + n], labels[at : at + n]).value
            excess.append(float((logp.exp() * (logp - (logits / t).log_softmax(1))).sum(1).mean()))
        assert sum(excess) / len(excess) == pytest.approx(1 / (2 * n), rel=0.35)
