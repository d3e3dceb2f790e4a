"""`lipscale.fit` on whatever people have: every sample in its place, and bit-exact resumption."""

import dataclasses
import math
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import lipscale
from lipscale import fit, get_lipschitz, lipschitz_bound, models
from lipscale.calibration import measure_temperature
from lipscale.data import Samples
from lipscale.errors import DivergedError, StoppedError, UserError
from lipscale.layers import BatchCentering, OrthoLinear
from lipscale.training.batches import batches_of, split_data

SIZES = (60, 40, 20)  # of the three classes


def blobs(sizes=SIZES, *, seed=0):
    """Rows (N, 4) around three centres, in any order; the last number of a row is its own, to tell it by."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=rng)]
    centres = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]])
    rows = centres[labels] + torch.randn(len(labels), 3, generator=rng)
    return torch.cat((rows, 1e-3 * torch.arange(len(labels)).unsqueeze(1)), 1), labels


def names(inputs):
    """Which rows these are."""
    return (1e3 * inputs[:, 3]).round().long().tolist()


DATA = TensorDataset(*blobs())
HELD_OUT = TensorDataset(*blobs((15, 10, 5), seed=1))


def network(kind="mlp", seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return models.mlp(3, 4, 8) if kind == "mlp" else models.convnet(10, 1, 4)


def quick(net, train, calibration=None, **options):
    return fit(net, train, calibration, **{"epochs": 2, "phase2_epochs": 1, "progress": False, **options})


def timeless(history):
    return [dataclasses.replace(epoch, seconds=0.0) for epoch in history]


class Seen:
    """Notes which rows come by in training, epoch by epoch."""

    def __init__(self):
        self.epochs = [Counter()]
        self.batches = [[]]

    def note(self, module, inputs):
        if module.training:
            self.epochs[-1].update(names(inputs[0]))
            self.batches[-1].append(names(inputs[0]))

    def next(self, epoch=None):
        self.epochs.append(Counter())
        self.batches.append([])


def watched(train, calibration=None, **options):
    """The rows that each epoch trained on, and the fit."""
    net, seen = network(), Seen()
    net.register_forward_pre_hook(seen.note)
    result = quick(net, train, calibration, on_epoch=seen.next, **options)
    assert not seen.epochs.pop()
    return result, seen


class Targets(Dataset):
    """A data set as torchvision's are: pairs of a tensor and a number, and `targets` as a list."""

    def __init__(self):
        self.inputs, labels = blobs()
        self.targets = labels.tolist()

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Stream(IterableDataset):
    """A data set that is only read from front to back."""

    def __init__(self, data, *, length=True):
        self.data = data
        if length:
            Stream.__len__ = lambda self: len(self.data)
        elif hasattr(Stream, "__len__"):
            del Stream.__len__

    def __iter__(self):
        return (self.data[i] for i in range(len(self.data)))


def kind_of(data):
    return type(data).__name__


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


class Interrupted(Exception):
    pass


CASES = {
    "mlp, adamw": {"batch_size": 24},
    "convnet, muon": {"batch_size": 24, "precision": "bfloat16"},
    "convnet, schedulefree": {"batch_size": 24, "optimizer": "schedulefree", "feedback": "paper"},
    "mlp, restart": {"batch_size": 24, "optimizer": "schedulefree", "phase2_start": "restart"},
}


@pytest.fixture(scope="module", params=CASES)
def case(request, digits):
    """A fit of four epochs of five batches, and what it ends with where nothing stops it."""
    kind = request.param.partition(",")[0]
    data = DATA if kind == "mlp" else TensorDataset(digits.train.inputs[:120], digits.train.labels[:120])

    def run(**more):
        return quick(network(kind), data, phase2_epochs=2, **CASES[request.param], **more)

    run.whole = run()
    return run


class TestCheckpoints:
    def same(self, one, other):
        assert timeless(one.history) == timeless(other.history)
        assert (one.lipschitz, one.converged, one.advice) == (other.lipschitz, other.converged, other.advice)
        theirs = other.net.state_dict()
        for name, tensor in one.net.state_dict().items():
            assert torch.equal(tensor, theirs[name]), name

    # five batches an epoch of either phase: in the first epoch, at its end, in the second, in both of Phase II
    @pytest.mark.parametrize("batch", [1, 5, 7, 10, 12, 16, 20])
    def test_a_stop_after_any_batch_loses_nothing(self, case, tmp_path, batch):
        asked = iter(range(1, 10**6))
        path = tmp_path / "fit.safetensors"
        with pytest.raises(
            StoppedError, match=f"stopped after {(batch - 1) // 5 % 2} whole epochs?|2 whole.*all is saved"
        ):
            case(checkpoint=path, should_stop=lambda: next(asked) == batch)
        self.same(case(checkpoint=path), case.whole)

    def test_stops_may_come_after_every_batch(self, case, tmp_path):
        path, stops = tmp_path / "fit.safetensors", 0
        while stops < 100:
            try:
                result = case(checkpoint=path, should_stop=lambda: True)
                break
            except StoppedError:
                stops += 1
        assert stops == 20
        self.same(result, case.whole)

    @pytest.mark.parametrize("epoch", [1, 2, 3, 4])
    def test_an_exception_after_an_epoch_loses_nothing(self, case, tmp_path, epoch):
        path, count = str(tmp_path / "fit.safetensors"), iter(range(1, 10))

        def fail(_):
            if next(count) == epoch:
                raise Interrupted

        with pytest.raises(Interrupted):
            case(checkpoint=path, on_epoch=fail)
        left = []
        self.same(case(checkpoint=path, on_epoch=left.append), case.whole)
        assert len(left) == 4 - epoch  # the epoch itself is not done again

    def test_a_finished_one_is_only_loaded(self, tmp_path):
        path, seen = tmp_path / "fit.safetensors", []
        first = quick(network(), DATA, checkpoint=path)
        again = quick(network(seed=5), DATA, checkpoint=path, on_epoch=seen.append)
        assert not seen
        assert again.history == first.history
        self.same(first, again)
        assert not any(module.training for module in again.net.modules())

    def test_another_training_is_refused(self, tmp_path):
        path = tmp_path / "fit.safetensors"
        quick(network(), DATA, checkpoint=path)
        for change in ({"offset": 1.0}, {"seed": 1}, {"batch_size": 7}, {"calibration_fraction": 0.5}):
            with pytest.raises(UserError, match="fit.safetensors is no checkpoint of a run with these settings"):
                quick(network(), DATA, checkpoint=path, **change)
        with pytest.raises(UserError, match="no checkpoint of a run with these settings"):
            quick(network(), TensorDataset(*blobs((60, 40, 30))), checkpoint=path)
        with pytest.raises(UserError, match="is no checkpoint of a run with these settings"):
            quick(models.mlp(3, 4, 10), DATA, checkpoint=path)
        path.write_bytes(path.read_bytes()[:-30])
        with pytest.raises(UserError, match="fit.safetensors is truncated"):
            quick(network(), DATA, checkpoint=path)

    def test_without_a_checkpoint_a_stop_says_that_nothing_is_saved(self):
        with pytest.raises(StoppedError, match="^stopped after 0 whole epochs$"):
            quick(network(), DATA, should_stop=lambda: True)


class TestProgress:
    def test_it_is_shown_on_stderr(self, capsys):
        quick(network(), DATA, progress=True)
        out, err = capsys.readouterr()
        assert out == ""
        lines = [line for line in err.splitlines() if line.startswith("phase")]
        assert len(lines) == 3
        assert lines[0].startswith("phase 1 epoch 1 L ")
        assert lines[2].startswith("phase 2 epoch 1 L ")
        for word in ("T* ", "loss ", "accuracy ", "left"):
            assert word in lines[0]
        assert "calibration samples know T*" in " ".join(err.split())  # a warning among them

    def test_it_is_the_default(self, capsys):
        fit(network(), DATA, epochs=1)
        assert "phase 1 epoch 1 L" in capsys.readouterr().err

    def test_nothing_is_shown_without(self, capsys):
        quick(network(), DATA, progress=False)
        out, err = capsys.readouterr()
        assert out == ""
        assert "phase" not in err


class Yields(Dataset):
    """Samples of any kind."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return self.make(index)


ROW = torch.zeros(4)
NOTHING = (torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))


class TestBadInput:
    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda i: {"x": ROW, "y": i % 3}, "pairs of tensors (inputs, labels), got a dict of 2"),
            (lambda i: (ROW, i % 3, i), "pairs of tensors (inputs, labels), got a list of 3"),
            (lambda i: (ROW,), "pairs of tensors (inputs, labels), got a list of 1"),
            (lambda i: ROW, "pairs of tensors (inputs, labels), got a Tensor"),
            (lambda i: (ROW, "cat"), "pairs of tensors (inputs, labels), got a list of 2"),
            (lambda i: (ROW, float(i % 3)), "labels (B,) of whole numbers for inputs (16, 4), got torch.float64 (16,)"),
            (lambda i: (ROW, torch.tensor([i % 3])), "inputs (16, 4), got torch.int64 (16, 1)"),
        ],
    )
    def test_batches_that_are_no_pairs(self, make, said):
        data = Yields(make)
        for train in (data, DataLoader(data, 16)):
            with pytest.raises(UserError) as refused:
                quick(network(), train, HELD_OUT, batch_size=16)
            assert said in str(refused.value)

    def test_bytes_are_named_with_the_way_out(self):
        pixels = TensorDataset(torch.randint(0, 256, (60, 4)).to(torch.uint8), torch.arange(60) % 2)
        with pytest.raises(UserError, match="floating point numbers, got torch.uint8: divide bytes by 255"):
            quick(network("mlp"), pixels)

    def test_a_calibration_set_of_no_pairs(self):
        with pytest.raises(UserError, match="got a dict of 1"):
            quick(network(), DATA, DataLoader(Yields(lambda i: {"x": ROW})))

    def test_inputs_and_labels_of_different_lengths(self):
        loader = DataLoader(DATA, 16, collate_fn=lambda b: (torch.stack([x for x, _ in b]), torch.tensor([0, 1, 2])))
        with pytest.raises(UserError, match=r"for inputs \(16, 4\), got torch.int64 \(3,\)"):
            quick(network(), loader, HELD_OUT)

    def test_a_loader_that_yields_nothing(self):
        for loader in (DataLoader(DATA, 500, drop_last=True), DataLoader(Stream([]), 4)):
            with pytest.raises(UserError, match="the data loader yields no batch"):
                quick(network(), loader, HELD_OUT)
        with pytest.raises(UserError, match="the data loader yields no batch"):
            quick(network(), DATA, DataLoader(HELD_OUT, 500, drop_last=True))

    @pytest.mark.parametrize("empty", [TensorDataset(*NOTHING), [], Samples(*NOTHING)], ids=kind_of)
    def test_an_empty_data_set(self, empty):
        for arguments in ((empty,), (empty, HELD_OUT), (DATA, empty)):
            with pytest.raises(UserError, match="the data set is empty"):
                quick(network(), *arguments)

    def test_what_is_no_data(self):
        for train in (3, "digits", iter([]), None):
            with pytest.raises(UserError, match=r"expected a Dataset or DataLoader of \(inputs, labels\), got|pairs"):
                quick(network(), train, HELD_OUT)

    def test_data_of_two_forms(self):
        with pytest.raises(UserError, match="`train` and `calibration` in one form, got Samples and TensorDataset"):
            quick(network(), Samples(*DATA.tensors), HELD_OUT)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"epoch": 3}, "unknown setting 'epoch'; did you mean 'epochs'?"),
            ({"learning_rat": 0.1}, "unknown setting 'learning_rat'; did you mean 'learning_rate'?"),
            ({"model": "mlp"}, "unknown setting 'model'"),
            ({"epochs": 0}, "epochs: should be greater than or equal to 1, got 0"),
            ({"offset": -1.0}, "offset: should be greater than or equal to 0, got -1.0"),
            ({"method": "lists"}, "did you mean 'list'?"),
            ({"batch_size": 0}, "batch_size: should be greater than or equal to 1, got 0"),
            ({"calibration_fraction": 0.001}, "`calibration_fraction` 0.001 of 120 samples leaves one part empty"),
        ],
    )
    def test_settings_that_make_no_sense(self, options, said):
        with pytest.raises(UserError) as refused:
            quick(network(), DATA, **options)
        assert said in str(refused.value)

    def test_a_calibration_set_for_a_method_without_feedback(self):
        with pytest.raises(UserError, match="method fixed has no feedback.*join it to train"):
            quick(network(), DATA, HELD_OUT, method="fixed", phase2_epochs=None)

    @pytest.mark.parametrize(
        "train",
        [
            DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 16, drop_last=False)),
            DataLoader(DATA, 16, sampler=WeightedRandomSampler(torch.ones(120), 120)),
            DataLoader(DATA, 16, sampler=RandomSampler(DATA, replacement=True)),
            DataLoader(Stream(DATA), 16),
        ],
        ids=["batch_sampler", "weighted", "replacement", "stream"],
    )
    def test_a_loader_that_cannot_be_split(self, train):
        with pytest.raises(UserError, match="this data loader cannot be split: give a calibration set of its own"):
            quick(network(), train)

    def test_a_data_set_that_cannot_be_split(self):
        with pytest.raises(UserError, match="cannot be split: give a calibration set"):
            quick(network(), Stream(DATA))
        with pytest.raises(UserError, match="batches cannot be split"):
            quick(network(), batches_of(DATA, batch_size=8, seed=0))

    def test_a_stream_without_a_length(self):
        try:
            with pytest.raises(UserError, match="no length, and a plan needs one"):
                quick(network(), DataLoader(Stream(DATA, length=False), 16), HELD_OUT)
        finally:
            Stream(DATA)

    def test_a_network_without_scaled_layers(self):
        with pytest.raises(UserError, match="positively homogeneous|no scaled layer"):
            quick(nn.Sequential(nn.Linear(4, 3)), DATA)

    def test_a_diverging_training_names_the_rate_and_the_last_good_state(self, tmp_path):
        inputs, labels = blobs()
        path = tmp_path / "fit.safetensors"
        bad = TensorDataset(inputs * math.inf, labels)
        with pytest.raises(DivergedError, match="epoch 1 of Phase I; try a smaller `learning_rate` than 0.05"):
            quick(network(), bad, HELD_OUT, learning_rate=0.05, checkpoint=path)
        assert not path.exists()

    def test_a_box_reaches_methods_that_attack(self):
        """Attacked rows stay in it."""
        seen = []
        net = models.mlp(3, 4, 8, parts=models.UNCONSTRAINED)
        net.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]) if module.training else None)
        rows = TensorDataset(torch.rand(60, 4), torch.arange(60) % 3)
        options = {"method": "pgd-at", "phase2_epochs": None, "attack_epsilon": 2.0, "attack_steps": 2}
        quick(net, rows, box=(0.0, 1.0), **options)
        assert 0 <= min(float(x.min()) for x in seen) <= max(float(x.max()) for x in seen) <= 1
        assert not any(isinstance(module, OrthoLinear) for module in net.modules())


def test_labels_beyond_the_networks_classes_are_named():
    data = torch.utils.data.TensorDataset(torch.rand(40, 4), torch.arange(40) % 5)
    with pytest.raises(lipscale.UserError, match=r"expected labels in 0..1, got 0..4"):
        lipscale.fit(lipscale.models.mlp(2, 4, 8), data, epochs=1, progress=False, batch_size=40)
