"""From settings to the parts of a run: the data, the network, the device, and a training that is ready to start."""

import dataclasses
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipscale import _processes as processes
from lipscale import data, models
from lipscale._random import seeded
from lipscale.attacks.ball import Box
from lipscale.certificates import prove
from lipscale.data import Dataset, Preprocessing, Samples
from lipscale.errors import UserError
from lipscale.losses import class_weights
from lipscale.runs.tables import table_batch, table_depth, table_width
from lipscale.settings import Settings, TrainingSettings, replace
from lipscale.training.batches import SampleBatches
from lipscale.training.budget import fit_to_time, seconds_of
from lipscale.training.defaults import DEFAULT_BATCH_SIZE, calibrated, is_small
from lipscale.training.hardware import one_thread

# What of a set's usual augmentation suits an MLP. It shares no weights between places, so a shifted image is another
# input: crops cost it accuracy, certified accuracy and calibration (FEEDBACK.md). A mirrored one is as likely.
WITHOUT_CROPS = {"crop": "none", "crop+flip": "flip"}
FEWEST_IN_A_BATCH = 32
LEAST_CROP = 2  # pixels; one more from so many epochs on, another from so many
MANY_EPOCHS = (20, 50)
MIRRORED_FROM = 96  # channels: a narrower one gains no time by it that is worth its weights (docs/CIFAR_TRIED.md)
# patchnet's unconstrained twin learns by AdamW, which wants more and longer steps than Muon: on held-out images of
# CIFAR-10 accuracy was 0.716 after 15 epochs, and 0.61 with batches of 1,024 and the usual rate
TWIN_BATCH, TWIN_RATE = 256, 0.004
EVALUATED = 256  # test samples that are timed where a budget in minutes is planned
REPORTED = 5.0  # seconds that metrics with their intervals and the report take, more or less


def build_network(settings: Settings, classes: int, preprocessing: Preprocessing) -> nn.Sequential:
    """The network that the resolved settings name, initialised from the run's seed."""
    shape, mean = preprocessing.input_shape, preprocessing.mean
    with seeded(settings.seed, "weights"):
        return models.build(settings, classes, shape, mean=mean, constrained=settings.is_constrained)


def suitable_batch_size(samples: int, model: str) -> int:
    """Some 40 steps an epoch of patchnet, whose steps cost much beside what its images cost; 128 for the others.

    Few images make a few steps all the same: with one an epoch, 40 epochs learn little.
    """
    if model != "patchnet":
        return max(1, min(DEFAULT_BATCH_SIZE, samples))
    some, few = (2 ** max(0, round(math.log2(max(1, samples) / steps))) for steps in (44, 4))
    least = min(DEFAULT_BATCH_SIZE, max(FEWEST_IN_A_BATCH, few))
    return max(1, min(1024, max(least, some), samples))


def largest_crop(shape: tuple[int, ...]) -> int:
    """What leaves three quarters of an image at least, or all but two pixels of a small one."""
    return max(LEAST_CROP, min(shape[1:]) // 4)


def suitable_crop(augmentation: str, epochs: int, shape: tuple[int, ...]) -> int | None:
    """Larger crops where images are seen often, which over-fits; in few epochs they cost certified accuracy."""
    if not augmentation.startswith("crop"):
        return None
    return min(LEAST_CROP + sum(epochs >= many for many in MANY_EPOCHS), largest_crop(shape))


def within_minutes(settings: Settings, dataset: Dataset, preprocessing: Preprocessing, *, started: float) -> Settings:
    """The settings with the width and the epochs that fill `minutes`, counted from when the run was started."""
    assert settings.minutes is not None
    values = settings.model_dump(include=set(TrainingSettings.model_fields))

    def time_epoch(width: int | None) -> tuple[float, float]:
        width = width or models.DEFAULT_WIDTH[settings.model]
        parts = assemble(at_width(settings, width, preprocessing.input_shape), dataset, preprocessing)
        some = data.as_input(parts.test.inputs[torch.arange(min(EVALUATED, len(parts.test)))])
        with one_thread(when=is_small(parts.net, parts.train.batch_size)):  # as the run itself
            epoch = seconds_of(parts.net, parts.train, parts.calibration, values)
            start = processes.clock()
            proof = prove(parts.net, some.shape[1:])  # once for all samples
            proven = processes.clock()
            proof(some).radius().cpu()  # a GPU answers when it is asked for the values
            answers = (processes.clock() - proven) / len(some) * len(parts.test)
        return epoch, REPORTED + proven - start + answers

    elapsed = processes.by_first(lambda: time.perf_counter() - started)
    width, epochs = fit_to_time(
        60 * settings.minutes,
        time_epoch,
        spent=elapsed,
        width=settings.width,
        is_scalable=settings.model == "patchnet",
    )
    on_top = settings.phase2_epochs or 0 if settings.method == "list" else 0  # others have one phase
    if epochs <= on_top:
        raise UserError(
            f"{settings.minutes:.2g} minutes hold {epochs} epochs here, too few for {on_top} of Phase II: "
            "give more `minutes` or fewer `phase2_epochs`"
        )
    settings = at_width(settings, width or models.DEFAULT_WIDTH[settings.model], preprocessing.input_shape)
    return at_epochs(settings, epochs - on_top, preprocessing.input_shape)


def at_epochs(settings: Settings, epochs: int, input_shape: tuple[int, ...]) -> Settings:
    """The resolved settings with so many epochs, and with what follows from them: how far crops go."""
    crop = suitable_crop(settings.augmentation, epochs, input_shape) if settings.crop is None else settings.crop
    return replace(settings, epochs=epochs, crop=crop)


def pick_device(name: str) -> torch.device:
    """The device by name; auto takes a GPU where there is one with float64, which certificates need (so not mps)."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, dtype=torch.float64, device=name).cpu()
        return torch.device(name)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r} is not available here ({reason}); use cpu as `device`") from None


def read_data(
    settings: Settings,
    *,
    stored: Preprocessing | None = None,
    classes: tuple[str, ...] = (),
    data_dir: Path | None = None,
) -> tuple[Dataset, Preprocessing]:
    """The data that the settings name, ready for a network; `stored` and `classes` keep a run's own."""
    dataset, _ = _read(settings, data_dir, classes=classes, stored=stored)
    return data.prepare(dataset, stored)


def read_conformal(
    settings: Settings, *, stored: Preprocessing, classes: tuple[str, ...], data_dir: Path | None = None
) -> Samples | None:
    """The samples that a run held out for conformal sets, ready for its network; none where it held out none."""
    dataset, held_out = _read(settings, data_dir, classes=classes, stored=stored)
    return None if held_out is None else data.prepare(dataclasses.replace(dataset, test=held_out), stored)[0].test


def _read(settings: Settings, data_dir: Path | None, **known: Any) -> tuple[Dataset, Samples | None]:
    """The data as the files have them, and what of the training part is held out for conformal sets."""
    dataset = data.read_dataset(settings, data_dir, **known)
    if settings.limit is not None:
        dataset = data.limit(dataset, settings.limit, seed=settings.seed)
    if settings.conformal_fraction is None:
        return dataset, None
    return data.split_conformal(dataset, settings.conformal_fraction, seed=settings.seed)


def resolve(settings: Settings, dataset: Dataset, preprocessing: Preprocessing) -> Settings:
    """The settings with every `auto` decided and every path made absolute, so that the folder can be moved."""
    shape, count = preprocessing.input_shape, len(dataset.train)
    model = models.suitable_model(shape) if settings.model == "auto" else settings.model
    augmentation = dataset.augmentation if settings.augmentation == "auto" else str(settings.augmentation)
    if settings.augmentation == "auto" and model == "mlp":
        augmentation = WITHOUT_CROPS.get(augmentation, augmentation)
    if augmentation != "none" and len(shape) == 1:
        raise UserError(f"augmentation {augmentation!r} needs images, and {dataset.name} has rows")
    crop = settings.crop
    if crop is None and settings.minutes is None:
        crop = suitable_crop(augmentation, settings.epochs, shape)
    elif crop is not None and augmentation.startswith("crop"):
        if crop > (most := largest_crop(shape)):
            sides = " x ".join(map(str, shape[1:]))
            raise UserError(f"`crop` {crop} would leave little of images of {sides}: give {most} at most")
    elif crop not in (None, LEAST_CROP):  # which files of earlier versions state, whatever the augmentation
        raise UserError(f"`crop` {crop} has no part in `augmentation` {augmentation}: leave one of them out")
    if settings.cutout and (len(shape) == 1 or settings.cutout > min(shape[1:]) // 2):
        what = "rows of numbers" if len(shape) == 1 else f"images of {' x '.join(map(str, shape[1:]))}"
        raise UserError(f"`cutout` {settings.cutout} does not suit {what}: it is of images, and at most half of a side")
    if settings.jitter and len(shape) == 1:
        raise UserError(f"`jitter` {settings.jitter:g} is of images, and {dataset.name} has rows: leave it out")
    class_weights(settings.class_weights, dataset.train.labels, len(dataset.classes))  # to refuse what cannot be
    if settings.holds_out:
        settings = calibrated(settings, count)
    is_split = settings.holds_out and not settings.cross_fit
    rows = count - (round((settings.calibration_fraction or 0) * count) if is_split else 0)
    named = settings.data in data.READERS
    paths = {name: path for name in ("data_dir", "test_data") if (path := getattr(settings, name)) is not None}
    settings = replace(
        settings,
        model=model,
        augmentation=augmentation,
        padding=settings.padding or models.default_padding(settings.layers),
        **(_for_table if model == "mlp" and len(shape) == 1 else _for_images)(settings, dataset, model, rows),
        crop=crop,
        data=settings.data if named else str(Path(settings.data).expanduser().resolve()),
        **{name: path.expanduser().resolve() for name, path in paths.items()},
    )
    return at_width(settings, settings.width, shape)


def at_width(settings: Settings, width: int | None, input_shape: tuple[int, ...]) -> Settings:
    """The resolved settings with this width, and with what follows from it: whether answers are mirrored.

    They had better be where training would show both sides, and the network is so wide that half of its products are
    worth more than half of its weights.
    """
    mirror = settings.mirror
    if mirror is None and width is not None:
        is_worth_it = settings.is_constrained and width >= MIRRORED_FROM and "flip" in settings.augmentation
        mirror = is_worth_it and models.mirrors_by_construction(settings, input_shape, width)
    return replace(settings, width=width, mirror=mirror)


def _for_images(settings: Settings, dataset: Dataset, model: str, rows: int) -> dict[str, float | None]:
    """The sizes that suit so many images, and the twin's learning rate."""
    batch_size, learning_rate = suitable_batch_size(rows, model), settings.learning_rate
    if model == "patchnet" and not settings.is_constrained:
        batch_size = min(batch_size, TWIN_BATCH)
        learning_rate = learning_rate or (None if settings.optimizer == "schedulefree" else TWIN_RATE)
    return {
        "batch_size": settings.batch_size or batch_size,
        "learning_rate": learning_rate,
        "depth": models.DEFAULT_DEPTH.get(model) if settings.depth is None else settings.depth,
        "width": settings.width or (models.DEFAULT_WIDTH[model] if settings.minutes is None else None),
    }


def _for_table(settings: Settings, dataset: Dataset, model: str, rows: int) -> dict[str, float | None]:
    """Likewise, for rows of numbers."""
    depth = table_depth(dataset.train, len(dataset.classes)) if settings.depth is None else settings.depth
    width = settings.width or table_width(dataset.input_shape[0])
    return {"batch_size": settings.batch_size or table_batch(rows), "depth": depth, "width": width}


@dataclass(frozen=True)
class Parts:
    """What a training is made of, and what it is measured on."""

    net: nn.Module
    train: SampleBatches
    calibration: SampleBatches | None
    test: Samples
    box: Box | None
    classes: tuple[str, ...]


def assemble(settings: Settings, dataset: Dataset, preprocessing: Preprocessing) -> Parts:
    """The network and the data of a run, on the device that the settings name."""
    device = pick_device(settings.device)
    train, calibration = dataset.train, None
    if settings.holds_out and settings.cross_fit:
        data.require_turns(train, dataset.classes)
    elif settings.holds_out:
        assert settings.calibration_fraction is not None  # resolved
        train, calibration = data.split_calibration(
            train, settings.calibration_fraction, seed=settings.seed, classes=dataset.classes
        )
    batch_size = settings.batch_size or DEFAULT_BATCH_SIZE
    if batch_size > len(train):
        problem = f"`batch_size` {batch_size} is larger than the {len(train)} training samples"
        raise UserError(f"{problem}: give at most that, or leave it out")
    net = build_network(settings, len(dataset.classes), preprocessing).to(device)

    def batches(samples: Samples) -> SampleBatches:
        crop = LEAST_CROP if settings.crop is None else settings.crop  # open while the speed is measured
        how = settings.augmentation, settings.seed, crop, settings.cutout, settings.jitter
        return SampleBatches(samples.to(device), batch_size, *how)

    held_out = None if calibration is None else batches(calibration)
    return Parts(net, batches(train), held_out, dataset.test.to(device), box_of(preprocessing), dataset.classes)


def device_of(net: nn.Module) -> torch.device:
    """Where a network is."""
    return next(net.parameters()).device


def box_of(preprocessing: Preprocessing) -> Box | None:
    """Where attacked inputs must stay to be inputs: pixels have a range, a table's numbers have none."""
    return (0.0, 1.0) if preprocessing.unit == data.PIXELS else None
