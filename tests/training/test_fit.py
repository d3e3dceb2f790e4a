"""`fit`: what it takes, how it splits, what comes back, and what the seed decides."""

import math
from collections import Counter

import pytest
import torch
from fit_makers import (
    DATA,
    HELD_OUT,
    Stream,
    Targets,
    blobs,
    network,
    quick,
    timeless,
    watched,
)
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

import lipscale
from lipscale import fit, get_lipschitz, lipschitz_bound
from lipscale.calibration import measure_temperature
from lipscale.data import Samples
from lipscale.layers import BatchCentering
from lipscale.training.batches import batches_of, split_data


class TestWhatItTakes:
    @pytest.mark.parametrize(
        "data", [DATA, Targets(), Samples(*DATA.tensors), list(DATA)], ids=lambda d: type(d).__name__
    )
    def test_a_data_set_is_split_and_phase_two_sees_all_of_it(self, data):
        result, seen = watched(data, batch_size=16)
        assert (result.train_size, result.calibration_size) == (108, 12)
        first, again, last = seen.epochs
        assert first == again
        assert set(first.values()) == set(last.values()) == {1}
        assert len(first) == 108
        assert sorted(last) == list(range(120))
        assert seen.batches[0] != seen.batches[1]  # in another order

    def test_a_calibration_set_is_trained_on_in_phase_two_only(self):
        inputs, labels = blobs()
        train, calibration = TensorDataset(inputs[:90], labels[:90]), TensorDataset(inputs[90:], labels[90:])
        for given in ((train, calibration), (DataLoader(train, 16, shuffle=True), DataLoader(calibration, 7))):
            result, seen = watched(*given)
            assert (result.train_size, result.calibration_size) == (90, 30)
            assert [sorted(epoch) for epoch in seen.epochs] == [[*range(90)], [*range(90)], [*range(120)]]
            mixed = [{name < 90 for name in batch} for batch in seen.batches[2]]
            assert {True, False} in mixed  # one shuffled loader, not one set after the other

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_a_loader_keeps_its_batches_and_its_order(self, shuffle):
        _, seen = watched(DataLoader(DATA, 32, shuffle=shuffle, num_workers=0), batch_size=5)
        assert [len(batch) for batch in seen.batches[0]] == [32, 32, 32, 12]
        assert [len(batch) for batch in seen.batches[2]] == [32, 32, 32, 24]
        assert (seen.batches[0] == seen.batches[1]) is not shuffle

    def test_a_loader_may_drop_its_last_batch(self):
        result, seen = watched(DataLoader(DATA, 50, shuffle=True, drop_last=True))
        assert [[len(batch) for batch in epoch] for epoch in seen.batches] == [[50, 50], [50, 50], [50, 50], []]
        assert result.calibration_size == 12  # of which none is dropped

    def test_a_loader_with_a_collate_function_keeps_it(self):
        def doubled(samples):
            return torch.stack([x for x, _ in samples]) * 2, torch.stack([y for _, y in samples])

        seen = []
        net = network()
        net.register_forward_pre_hook(lambda module, inputs: seen.append(float(inputs[0][:, 3].max())))
        quick(net, DataLoader(DATA, 200, collate_fn=doubled))
        assert max(seen) == pytest.approx(2 * 0.119)  # calibration and Phase II, too
        assert sum(value > 0.119 for value in seen) > len(seen) / 2

    def test_an_iterable_with_a_length_and_a_calibration_set(self):
        for train in (Stream(DATA), DataLoader(Stream(DATA), 16)):
            result, seen = watched(train, HELD_OUT)
            assert (result.train_size, result.calibration_size) == (120, 30)
            assert [sum(epoch.values()) for epoch in seen.epochs] == [120, 120, 150]

    def test_a_batch_sampler(self):
        sampler = BatchSampler(RandomSampler(DATA), 16, drop_last=False)
        _, seen = watched(DataLoader(DATA, batch_sampler=sampler), HELD_OUT)
        assert [sum(epoch.values()) for epoch in seen.epochs] == [120, 120, 150]
        assert max(map(len, seen.batches[0])) == 16

    def test_a_batch_sampler_of_the_calibration_set(self):
        """Of which only the samples that it draws are trained on."""
        sampler = BatchSampler(SequentialSampler(range(10)), 5, drop_last=False)
        _, seen = watched(DATA, DataLoader(HELD_OUT, batch_sampler=sampler))
        assert [sum(epoch.values()) for epoch in seen.epochs] == [120, 120, 130]

    def test_a_sampler_that_draws_a_part_is_not_made_to_draw_all(self):
        drawn = RandomSampler(DATA, num_samples=30)
        _, seen = watched(DataLoader(DATA, 10, sampler=drawn), HELD_OUT)
        assert [sum(epoch.values()) for epoch in seen.epochs] == [30, 30, 60]

    def test_fixed_trains_on_everything(self):
        result, seen = watched(DATA, method="fixed", lipschitz=3.0, phase2_epochs=None)
        assert [sorted(epoch) for epoch in seen.epochs] == [[*range(120)]] * 2
        assert (result.train_size, result.calibration_size) == (120, 0)
        assert result.lipschitz == pytest.approx(3.0, rel=1e-6)
        assert result.converged is None
        assert result.advice is None

    def test_no_row_of_the_calibration_set_is_seen_before_phase_two(self):
        calibration = set(split_data(DATA, 0.1, seed=0)[1].indices)
        _, seen = watched(DATA)
        assert not calibration & (set(seen.epochs[0]) | set(seen.epochs[1]))
        assert calibration < set(seen.epochs[2])


class TestTheSplit:
    @pytest.mark.parametrize(
        "data", [DATA, Targets(), DataLoader(DATA, 8, shuffle=True)], ids=["tensors", "targets", "loader"]
    )
    def test_each_class_is_there_in_proportion(self, data):
        train, calibration = split_data(data, 0.25, seed=0)
        found = []
        for part in (train, calibration):
            batches = batches_of(part, batch_size=9, seed=0).in_order()
            found.append(Counter(label for _, labels in batches for label in labels.tolist()))
        assert found == [{0: 45, 1: 30, 2: 15}, {0: 15, 1: 10, 2: 5}]

    def test_without_known_labels_it_is_random(self):
        train, calibration = split_data(Subset(DATA, range(100)), 0.2, seed=0)
        assert (len(train), len(calibration)) == (80, 20)
        assert not set(train.indices) & set(calibration.indices)
        assert calibration.indices != split_data(Subset(DATA, range(100)), 0.2, seed=1)[1].indices

    def test_two_tensors_are_a_data_set(self):
        inputs, labels = DATA.tensors
        one, other = quick(network("mlp"), (inputs, labels)), quick(network("mlp"), TensorDataset(inputs, labels))
        assert timeless(one.history) == timeless(other.history)

    def test_the_fraction_is_a_setting(self):
        assert quick(network(), DATA, calibration_fraction=0.25).calibration_size == 30


class TestTheResult:
    def test_it_is_ready_to_certify_and_tells_how_it_came_about(self):
        seen, net = [], network()
        result = quick(net, DATA, epochs=3, on_epoch=seen.append)
        assert result.net is net
        assert not any(module.training for module in net.modules())
        assert result.history == tuple(seen)
        assert [(e.phase, e.epoch) for e in seen] == [(1, 1), (1, 2), (1, 3), (2, 1)]
        assert (result.epochs_of(1), result.epochs_of(2)) == (3, 1)
        assert result.lipschitz == seen[-1].lipschitz == seen[2].lipschitz == get_lipschitz(net)
        assert result.lipschitz != 1.0
        assert result.converged is False  # three epochs are too few to tell
        assert "12 calibration samples" in result.advice
        assert result.seconds == pytest.approx(sum(e.seconds for e in seen))
        assert lipschitz_bound(net) == pytest.approx(result.lipschitz, rel=1e-5)
        assert lipscale.certify(net, DATA.tensors[0]).bound == pytest.approx(result.lipschitz, rel=1e-4)

    def test_it_learns_and_is_calibrated(self):
        """The blobs' Bayes accuracy is some 85 %: confidence must not exceed it."""
        train, calibration = (TensorDataset(*blobs((400, 400, 400), seed=s)) for s in (2, 3))
        result = fit(network(), train, calibration, epochs=20, progress=False)
        inputs, labels = blobs((500, 500, 500), seed=4)
        with torch.no_grad():
            logits = result.net(inputs)
        accuracy = float((logits.argmax(1) == labels).float().mean())
        assert accuracy > 0.8
        measured = measure_temperature(logits, labels)
        assert abs(math.log(measured.value)) < 4 * measured.error
        assert float(logits.softmax(1).amax(1).mean()) == pytest.approx(accuracy, abs=0.04)

    def test_the_papers_rule_stops_by_itself(self):
        calibration = TensorDataset(*blobs((100, 100, 100), seed=1))
        rule = {
            "feedback": "paper",
            "optimizer": "schedulefree",
            "window": 2,
            "tolerance": 100.0,
            "learning_rate": 0.05,
        }
        result = quick(network(), DATA, calibration, epochs=50, batch_size=16, **rule)
        assert result.converged is True
        assert result.epochs_of(1) == 2

    @pytest.mark.parametrize("kind", ["mlp", "convnet"])
    def test_a_network_in_double_precision_stays_so(self, kind, digits):
        inputs, labels = DATA.tensors if kind == "mlp" else (digits.train.inputs[:80], digits.train.labels[:80])
        result = quick(network(kind).double(), TensorDataset(inputs.double(), labels), batch_size=20)
        assert {t.dtype for t in result.net.parameters()} == {torch.float64}
        assert result.net(inputs[:5].double()).dtype == torch.float64
        assert lipschitz_bound(result.net) == pytest.approx(result.lipschitz, rel=1e-9)

    def test_the_means_are_those_of_the_training_data(self, digits):
        """One batch of all data, so that the mean is known: of Phase II, both sets together."""
        inputs, labels = digits.train.inputs[:80], digits.train.labels[:80]
        net = quick(network("convnet"), TensorDataset(inputs, labels), batch_size=80).net
        first, centering = net.conv1[0], net.conv1[1]
        with torch.no_grad():
            mean = first(net.pad(net.input(inputs))).mean((0, 2, 3))
        assert isinstance(centering, BatchCentering)
        torch.testing.assert_close(centering.scale * centering.mean, mean, atol=1e-6, rtol=1e-5)

    @pytest.mark.parametrize("offset", [0.0, 2.0])
    def test_the_offset_enters_the_loss(self, offset):
        """One batch of all rows, so that the first loss is that of the network as it came."""
        net, (inputs, labels) = network(), DATA.tensors
        with torch.no_grad():
            expected = lipscale.offset_cross_entropy(net.train()(inputs), labels, offset=offset)
        result = fit(net, DATA, epochs=1, method="fixed", offset=offset, progress=False)
        assert result.history[0].loss == pytest.approx(float(expected), rel=1e-5)

    def test_class_weights_count_by_what_is_there(self):
        plain, balanced, by_hand = (
            quick(network(), DATA, class_weights=w).history for w in ("none", "balanced", (1.0, 1.5, 3.0))
        )
        assert plain[0].loss != balanced[0].loss
        assert balanced[-1].lipschitz == pytest.approx(by_hand[-1].lipschitz, rel=1e-4)  # 60, 40 and 20 rows


class TestTheSeed:
    def test_the_same_seed_gives_the_same_numbers_and_another_does_not(self):
        found = []
        for seed in (0, 0, 1):
            torch.manual_seed(len(found))  # the global generator plays no part
            result = quick(network(), DATA, seed=seed, batch_size=16)
            found.append((timeless(result.history), [p.tolist() for p in result.net.parameters()]))
        assert found[0] == found[1] != found[2]

    def test_a_generator_of_the_loader_decides_on_its_order(self):
        def order(seed):
            generator = torch.Generator().manual_seed(seed)
            return watched(DataLoader(DATA, 16, shuffle=True, generator=generator), HELD_OUT)[1].batches

        assert order(0) == order(0) != order(1)
