"""What processes tell each other: real ones, by gloo."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.utils.data import IterableDataset, TensorDataset

from lipscale import _processes as processes
from lipscale import fit, models
from lipscale.data import Samples
from lipscale.training.batches import SampleBatches
from trainings import end_at_once, images

SILENCE = timedelta(seconds=3)


def _process(number, work, many, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", SILENCE, many, number)
    try:
        torch.save(work(), folder / str(number))
    finally:
        dist.destroy_process_group()
    end_at_once()


def by_all(work, folder, *, many=2):
    """What comes of some work in each of so many processes; a message that takes longer than SILENCE is an error."""
    folder.mkdir(exist_ok=True)
    multiprocessing.start_processes(_process, (work, many, folder), many, start_method="spawn")
    return [torch.load(folder / str(number)) for number in range(many)]


KINDS = (torch.bool, torch.uint8, torch.int32, torch.long, torch.bfloat16, torch.float32, torch.float64)


def totals():
    own = processes.number() + 1
    few = [processes.total(torch.full((2, 3), own).to(kind)) for kind in KINDS]
    strided = processes.total(own * torch.arange(6.0).view(2, 3).T)
    many = [processes.total(torch.full((size,), float(own))) for size in (processes.SMALL, processes.SMALL + 1)]
    return few, strided, many, processes.total(torch.tensor(own))


@pytest.mark.slow
def test_a_total_is_of_the_kind_that_it_sums(tmp_path):
    for few, strided, many, single in by_all(totals, tmp_path):
        assert [found.dtype for found in few] == list(KINDS)
        assert all(bool((found == (1 if found.dtype is torch.bool else 3)).all()) for found in few)
        assert strided.equal(3 * torch.arange(6.0).view(2, 3).T)
        assert all(bool((found == 3).all()) for found in many)
        assert int(single) == 3


class Overstated(IterableDataset):
    """Says that it holds more than comes."""

    def __len__(self):
        return 60

    def __iter__(self):
        return zip(*images(50), strict=True)


def _trained(data, *, batches=50, hook=None):
    torch.manual_seed(0)
    net = models.convnet(num_classes=3, in_channels=2, width=4).double()
    net.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    net.register_forward_hook(hook or (lambda *_: None))
    plan = {"epochs": 1, "phase2_epochs": 0, "centering_batches": batches, "batch_size": 10, "precision": "float32"}
    kind = Samples if isinstance(data, Samples) else TensorDataset
    fit(net, data, kind(*images(27, seed=7)), **plan, progress=False)
    return net.state_dict()


def trained():
    """With batches for all, for one process alone, for a number that does not divide, and with fewer than promised."""
    return [_trained(Samples(*images(53)), batches=batches) for batches in (6, 1, 5)] + [_trained(Overstated())]


def trained_by_a_slow_one():
    """One process takes longer for one of its centering batches than any message may."""
    times = iter([1.5 * SILENCE.total_seconds() * processes.number()])

    def wait(net, *_):
        if not net.training:
            time.sleep(next(times, 0))

    return _trained(Samples(*images(53)), hook=wait)


@pytest.mark.slow
def test_means_of_batches_in_turns_are_those_of_one_process(tmp_path):
    """However many batches there are for each, and whatever a data set says of its length: in float64."""
    for found in zip(trained(), *by_all(trained, tmp_path / "all"), strict=True):
        one, first, second = found
        for name, value in one.items():
            assert first[name].equal(second[name]), name
            assert first[name].numpy() == pytest.approx(value.numpy(), rel=1e-11, abs=1e-12), name


@pytest.mark.slow
def test_a_process_that_is_slow_on_its_batches_is_waited_for(tmp_path):
    first, second = by_all(trained_by_a_slow_one, tmp_path)
    assert all(first[name].equal(second[name]) for name in first)


def test_a_share_of_the_batches_reads_no_other():
    read = []

    class Counting(torch.Tensor):
        def __getitem__(self, index):
            read.append(len(index))
            return super().__getitem__(index)

    inputs, labels = images(50)
    data = SampleBatches(Samples(inputs.as_subclass(Counting), labels), 10)
    whole = list(data.epoch("centering", 1, 1, augmented=False))
    read.clear()
    some = list(data.epoch("centering", 1, 1, augmented=False, only=slice(1, 5, 2)))
    assert read == [10, 10]
    for (a, _), (b, _) in zip(some, whole[1::2], strict=True):
        assert a.equal(b)
