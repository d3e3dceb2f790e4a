"""`fit` on data that cannot be learned from: each ends in one line that says what is expected."""

import math

import pytest
import torch
from fit_makers import (
    DATA,
    HELD_OUT,
    Stream,
    blobs,
    kind_of,
    network,
    quick,
)
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import lipscale
from lipscale import models
from lipscale.data import Samples
from lipscale.errors import DivergedError, UserError
from lipscale.layers import OrthoLinear
from lipscale.training.batches import batches_of


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
