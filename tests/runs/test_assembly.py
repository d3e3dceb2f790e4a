"""What settings come to for a data set: the model, its sizes, its augmentation, and what is refused."""

import pytest
import torch

from lipscale import models
from lipscale.data import Dataset, Samples, prepare
from lipscale.errors import UserError
from lipscale.runs import assembly
from lipscale.runs.assembly import resolve, suitable_batch_size
from lipscale.settings import Settings


def test_the_batch_size_is_a_whole_number_for_every_set():
    sizes = {samples: suitable_batch_size(samples, "patchnet") for samples in (0, 1, 20, 100, 300, 900, 45_000, 10**6)}
    assert sizes == {0: 1, 1: 1, 20: 20, 100: 32, 300: 64, 900: 128, 45_000: 1024, 10**6: 1024}
    assert suitable_batch_size(45_000, "mlp") == 128


def test_the_unconstrained_patchnet_takes_smaller_batches_and_longer_steps():
    part = Samples(torch.zeros(20_000, 1, 32, 32, dtype=torch.uint8), torch.arange(20_000) % 2)
    dataset, preprocessing = prepare(Dataset("pictures", part, part, ("a", "b")))

    def chosen(**how):
        settings = resolve(Settings(model="patchnet", **how), dataset, preprocessing)
        return settings.batch_size, settings.learning_rate

    assert chosen(method="fixed") == (512, None)
    assert chosen(method="standard") == (256, 0.004)
    assert chosen(method="standard", optimizer="schedulefree") == (256, None)
    assert chosen(method="standard", batch_size=300, learning_rate=0.01) == (300, 0.01)


@pytest.mark.parametrize(
    ("side", "changes", "expected"),
    [
        (24, {}, ("patchnet", "crop+flip")),
        (24, {"model": "mlp"}, ("mlp", "flip")),  # to which a shifted image is another input
        (8, {}, ("mlp", "flip")),
        (24, {"model": "mlp", "augmentation": "crop"}, ("mlp", "crop")),  # what is asked for is done
        (24, {"model": "mlp", "augmentation": "none"}, ("mlp", "none")),
    ],
)
def test_the_augmentation_suits_the_data_and_the_model(side, changes, expected):
    part = Samples(torch.zeros(20, 3, side, side, dtype=torch.uint8), torch.arange(20) % 2)
    dataset, preprocessing = prepare(Dataset("pictures", part, part, ("a", "b"), augmentation="crop+flip"))
    found = resolve(Settings(**changes), dataset, preprocessing)
    assert (found.model, found.augmentation) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"width": 96}, True),
        ({"width": 64}, False),  # too narrow to gain by it
        ({"width": 98}, False),  # which has no two even halves
        ({"width": 96, "depth": 1}, False),
        ({"width": 96, "layers": "aol"}, False),
        ({"width": 96, "method": "standard"}, False),
        ({"width": 96, "model": "convnet"}, False),
        ({"width": 96, "augmentation": "crop"}, False),  # whoever does not mirror images may mean it
        ({"minutes": 1}, None),  # while the width is open
        ({"width": 64, "mirror": True}, True),  # what is asked for is done
    ],
)
def test_answers_are_mirrored_where_training_would_mirror_images(changes, expected):
    part = Samples(torch.zeros(20, 3, 24, 24, dtype=torch.uint8), torch.arange(20) % 2)
    dataset, preprocessing = prepare(Dataset("pictures", part, part, ("a", "b"), augmentation="crop+flip"))
    assert resolve(Settings(**changes), dataset, preprocessing).mirror is expected


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"crop": 7}, "images of 24 x 24: give 6 at most"),
        ({"crop": 4, "augmentation": "flip"}, "`crop` 4 has no part in `augmentation` flip"),
    ],
)
def test_a_crop_that_cannot_be_or_would_not_be_is_refused(changes, why):
    part = Samples(torch.zeros(20, 3, 24, 24, dtype=torch.uint8), torch.arange(20) % 2)
    dataset, preprocessing = prepare(Dataset("pictures", part, part, ("a", "b"), augmentation="crop+flip"))
    assert resolve(Settings(crop=6), dataset, preprocessing).crop == 6
    with pytest.raises(UserError, match=why):
        resolve(Settings(**changes), dataset, preprocessing)


@pytest.mark.parametrize(
    ("changes", "crop"),
    [
        ({"epochs": 19}, 2),
        ({"epochs": 20}, 3),
        ({"epochs": 50}, 4),
        ({"epochs": 50, "crop": 1}, 1),
        ({"epochs": 50, "augmentation": "flip"}, None),
        ({"epochs": 50, "augmentation": "flip", "crop": 2}, 2),  # files of earlier versions have it so
        ({"epochs": 50, "minutes": 1}, None),  # until they have decided on the epochs
    ],
)
def test_crops_grow_with_the_epochs(changes, crop):
    part = Samples(torch.zeros(20, 3, 24, 24, dtype=torch.uint8), torch.arange(20) % 2)
    dataset, preprocessing = prepare(Dataset("pictures", part, part, ("a", "b"), augmentation="crop+flip"))
    assert resolve(Settings(**changes), dataset, preprocessing).crop == crop


@pytest.mark.parametrize(("changes", "crop"), [({}, 4), ({"crop": 1}, 1), ({"augmentation": "flip"}, None)])
def test_crops_suit_the_epochs_that_minutes_have_decided_on(monkeypatch, changes, crop):
    part = Samples(torch.zeros(20, 3, 24, 24, dtype=torch.uint8), torch.arange(20) % 2)
    dataset, preprocessing = prepare(Dataset("pictures", part, part, ("a", "b"), augmentation="crop+flip"))
    settings = resolve(Settings(minutes=1, **changes), dataset, preprocessing)
    monkeypatch.setattr(assembly, "fit_to_time", lambda *_, **__: (8, 60))
    assert assembly.within_minutes(settings, dataset, preprocessing, started=0.0).crop == crop


def test_crops_are_made_while_the_epochs_are_open():
    part = Samples(torch.zeros(20, 3, 24, 24, dtype=torch.uint8), torch.arange(20) % 2)
    dataset, preprocessing = prepare(Dataset("pictures", part, part, ("a", "b"), augmentation="crop+flip"))
    settings = assembly.at_width(resolve(Settings(minutes=1), dataset, preprocessing), 8, preprocessing.input_shape)
    assert assembly.assemble(settings, dataset, preprocessing).train.crop == 2
    settings = assembly.at_epochs(settings, 60, preprocessing.input_shape)
    assert assembly.assemble(settings, dataset, preprocessing).train.crop == 4


@pytest.mark.parametrize("value", [0.2, 1.0])
def test_jitter_of_rows_is_refused(value):
    part = Samples(torch.zeros(20, 9), torch.arange(20) % 2)
    dataset, preprocessing = prepare(Dataset("things", part, part, ("a", "b")))
    with pytest.raises(UserError, match=f"`jitter` {value:g} is of images, and things has rows"):
        resolve(Settings(jitter=value), dataset, preprocessing)


@pytest.mark.parametrize(("shape", "model"), [((3, 4, 200), "patchnet"), ((3, 3, 200), "mlp"), ((3, 16, 16), "mlp")])
def test_thin_and_tiny_images_are_rows_to_auto(shape, model):
    assert models.suitable_model(shape) == model
    models.build(Settings(), 2, shape)


def test_a_second_phase_that_fills_all_of_the_minutes_is_refused(monkeypatch):
    part = Samples(torch.zeros(40, 4), torch.arange(40) % 2)
    dataset, preprocessing = prepare(Dataset("rows", part, part, ("a", "b")))
    settings = resolve(Settings(minutes=1, phase2_epochs=10, batch_size=4), dataset, preprocessing)
    monkeypatch.setattr(assembly, "fit_to_time", lambda *_, **__: (8, 12))
    planned = assembly.within_minutes(settings, dataset, preprocessing, started=0.0)
    assert (planned.epochs, planned.phase2_epochs) == (2, 10)
    monkeypatch.setattr(assembly, "fit_to_time", lambda *_, **__: (8, 10))
    with pytest.raises(UserError, match="1 minutes hold 10 epochs here, too few for 10 of Phase II"):
        assembly.within_minutes(settings, dataset, preprocessing, started=0.0)


@pytest.mark.parametrize(("shape", "why"), [((3, 12, 20), "images of 12 x 20"), ((9,), "rows of numbers")])
def test_a_square_larger_than_half_of_an_image_is_refused(shape, why):
    part = Samples(torch.zeros(20, *shape), torch.arange(20) % 2)
    dataset, preprocessing = prepare(Dataset("things", part, part, ("a", "b")))
    with pytest.raises(UserError, match=f"`cutout` 7 does not suit {why}"):
        resolve(Settings(cutout=7), dataset, preprocessing)
