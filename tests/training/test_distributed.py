"""One training on several processes: real ones, under torchrun, against one process in float64."""

import json
import shutil

import pytest

import trainings
from lipscale._files import load_tensors
from lipscale.errors import StoppedError
from trainings import TRAININGS, WRONG, torchrun, train

# Adam divides by what it remembers: where a gradient is zero but for rounding, rounding is what it steps by
TOLERANCE = {"mlp": 1e-8, "in turns": 1e-8, "mmce": 1e-8, "avuc": 1e-8, "averaged": 1e-6}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All trainings by one process and by two, some that were stopped by one and resumed by the other, and wrong ones.

    Processes take their time to start, so the same two do all that two have to do.
    """
    folder = tmp_path_factory.mktemp("trainings")
    for name in ("one", "two", "from-one", "from-two"):
        (folder / name).mkdir()
    for name in TRAININGS:
        train(name, folder / "one")
    with pytest.raises(StoppedError):
        train("resnet18", folder / "from-one", stop_after=6)
    for name in WRONG:
        for process in "01":
            (folder / name / process).mkdir(parents=True)
    # a checkpoint that one process sees, and the other does not
    shutil.copy(folder / "one" / "convnet.checkpoint", folder / "folder" / "1")
    order = [
        *({"name": name, "folder": "two"} for name in TRAININGS),
        {"name": "resnet18", "folder": "from-one"},
        *({"name": name, "folder": "from-two", "options": {"stop_after": 6}} for name in ("averaged", "resnet18")),
        {"name": "patchnet", "folder": "from-two", "options": {"stop_after": 10}},
        *({"wrong": name, "folder": name} for name in WRONG),
    ]
    torchrun(trainings.__file__, folder, json.dumps(order))
    for name in ("averaged", "resnet18", "patchnet"):
        assert not (folder / "from-two" / f"{name}.trained").exists()
        train(name, folder / "from-two")
    return folder


def assert_same(made, folder, name):
    (weights, one), (others, two) = (load_tensors(made / place / f"{name}.trained") for place in ("one", folder))
    assert [epoch["phase"] for epoch in one["history"]] == [1, 1, 2]
    for ours, theirs in zip(one["history"], two["history"], strict=True):
        for key, value in ours.items():
            exact = 1e-6 if key == "loss" else 1e-10  # losses are summed up in float32
            assert theirs[key] == (None if value is None else pytest.approx(value, rel=exact)), key
    assert weights.keys() == others.keys(), name
    for key, weight in weights.items():
        assert others[key].numpy() == pytest.approx(weight.numpy(), rel=1e-11, abs=TOLERANCE.get(name, 1e-12)), key


def test_any_number_of_processes_trains_the_network_that_one_does(made):
    for name in TRAININGS:
        assert_same(made, "two", name)
    assert_same(made, "from-one", "resnet18")  # two have gone on where one was stopped
    for name in ("averaged", "resnet18", "patchnet"):  # one has gone on where two were stopped, after the same batch
        assert_same(made, "from-two", name)
    told = {(made / f"from-two-{number}.txt").read_text() for number in (0, 1)}
    assert told == {"StoppedError: stopped after 2 whole epochs of Phase I, all is saved"}


def test_what_cannot_be_shared_is_refused_by_all_before_any_training(made):
    expected = {
        "small batches": "2 processes cannot share a batch of 1 samples (53 in batches of 1)",
        "settings": "process 1 has other settings, network or numbers of samples than process 0",
        "data": "process 1 has other data than process 0",
        "one fails": "process 1: smoothing: ",
        "folder": "process 1 has other epochs in ",
        "loader": "give a Dataset, not a DataLoader",
        "normalisation": "batch normalisation would see its process's share",
    }
    for name in WRONG:
        for number in (0, 1):
            assert expected[name] in (made / f"{name}-{number}.txt").read_text()
            assert not list((made / name).rglob("*.trained"))
