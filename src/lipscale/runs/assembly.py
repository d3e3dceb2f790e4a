"""From settings to the parts of a run: the data, the network, the device, and a training that is ready to start."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipscale._random import random_stream, seeded
from lipscale import _processes as processes
from lipscale.attacks.ball import Box
from lipscale.runs.settings import Settings, replace
from lipscale.training.settings import CONSTRAINED
from lipscale.data import (
    PIXELS,
    READERS,
    Dataset,
    Preprocessing,
    Samples,
    limit,
    load_dataset,
    prepare,
    split_calibration,
)
from lipscale.errors import UserError
from lipscale.losses import class_weights
from lipscale.models import convnet, mlp, parts_of, resnet18
from lipscale.training.algorithm import DEFAULT_BATCH_SIZE, ListTraining
from lipscale.training.optimizer import default_learning_rate

DEFAULT_WIDTH = {"resnet18": 64, "convnet": 32, "mlp": 256}
# up to this many pixels the MLP serves better than a convolution
TINY_IMAGE = 16 * 16


def build_network(settings: Settings, classes: int, preprocessing: Preprocessing) -> nn.Sequential:
    """The network that the resolved settings name, initialised from the run's seed."""
    shape, mean = preprocessing.input_shape, preprocessing.mean
    width = settings.width or DEFAULT_WIDTH[settings.model]
    if settings.model != "mlp" and len(shape) != 3:
        raise UserError(f"{settings.model} takes images; for rows of {shape[0]} numbers use the model mlp")
    layers = settings.layers if settings.method in CONSTRAINED else "plain"
    parts = parts_of(layers=layers, padding=settings.padding)
    with seeded(settings.seed, "weights"):
        if settings.model == "mlp":
            return mlp(classes, shape, width, depth=settings.depth, mean=mean, parts=parts)
        if settings.model == "convnet":
            return convnet(classes, shape[0], width, mean=mean, parts=parts)
        return resnet18(classes, shape[0], width, image_size=min(shape[1:]), mean=mean, parts=parts)


def resolve_model(model: str, shape: tuple[int, ...]) -> str:
    """The model by name; auto takes what suits the inputs."""
    if model != "auto":
        return model
    return "mlp" if len(shape) == 1 or math.prod(shape[1:]) <= TINY_IMAGE else "convnet"


def suitable_augmentation(usual: str, model: str) -> str:
    """What of a data set's usual augmentation suits the model.

    A shifted image is another input to an MLP, which shares no weights between places: crops cost it accuracy,
    certified accuracy and calibration (FEEDBACK.md). A mirrored one is as likely as the image itself.
    """
    if model != "mlp":
        return usual
    return "+".join(step for step in usual.split("+") if step != "crop") or "none"


def pick_device(name: str) -> torch.device:
    """The device by name; auto takes a GPU where there is one with float64, which certificates need (so not mps)."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, dtype=torch.float64, device=name).cpu()
        return torch.device(name)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r} is not available here ({reason}); use --device cpu") from None


def read_data(
    settings: Settings,
    *,
    stored: Preprocessing | None = None,
    classes: tuple[str, ...] = (),
    data_dir: Path | None = None,
) -> tuple[Dataset, Preprocessing]:
    """The data that the settings name, ready for a network; `stored` and `classes` keep a run's own."""
    dataset = load_dataset(settings, data_dir, classes=classes, stored=stored)
    if settings.limit is not None:
        dataset = limit(dataset, settings.limit, seed=settings.seed)
    return prepare(dataset, stored)


def resolve(settings: Settings, dataset: Dataset, preprocessing: Preprocessing) -> Settings:
    """The settings with every `auto` decided and every path made absolute, so that the folder can be moved."""
    shape = preprocessing.input_shape
    changes: dict[str, Any] = {}
    if settings.model == "auto":
        changes["model"] = resolve_model(settings.model, shape)
    if settings.batch_size is None:
        held_out = round(settings.calibration_fraction * len(dataset.train)) if settings.method == "list" else 0
        changes["batch_size"] = max(1, min(DEFAULT_BATCH_SIZE, len(dataset.train) - held_out))
    if settings.learning_rate is None:
        changes["learning_rate"] = default_learning_rate(settings)
    if settings.width is None:
        changes["width"] = DEFAULT_WIDTH[changes.get("model", settings.model)]
    if settings.augmentation == "auto":
        changes["augmentation"] = suitable_augmentation(dataset.augmentation, changes.get("model", settings.model))
    elif settings.augmentation != "none" and len(shape) == 1:
        raise UserError(f"augmentation {settings.augmentation!r} needs images, and {dataset.name} has rows")
    if settings.data not in READERS:
        changes["data"] = str(Path(settings.data).expanduser().resolve())
    for name in ("data_dir", "test_data"):
        if (path := getattr(settings, name)) is not None:
            changes[name] = path.expanduser().resolve()
    return replace(settings, **changes)


def new_training(settings: Settings, dataset: Dataset, preprocessing: Preprocessing) -> ListTraining:
    """A training at its very beginning, on the device that the settings name."""
    device = pick_device(settings.device)
    train_part: Samples = dataset.train
    calibration: Samples | None = None
    if settings.method == "list":
        train_part, calibration = split_calibration(
            train_part, settings.calibration_fraction, seed=settings.seed, classes=dataset.classes
        )
        calibration = calibration.to(device)
    if settings.batch_size is not None and settings.batch_size > len(train_part):
        raise UserError(
            f"batch_size {settings.batch_size} is larger than the {len(train_part)} training samples: "
            f"give at most that (--batch-size) or leave it out"
        )
    net = build_network(settings, len(dataset.classes), preprocessing).to(device)
    train_part = train_part.to(device)
    weights = class_weights(settings.class_weights, train_part.labels, len(dataset.classes))
    return ListTraining(
        net,
        train_part,
        calibration,
        settings,
        augmentation=settings.augmentation,
        class_weights=weights,
        box=box_of(preprocessing),
    )


def box_of(preprocessing: Preprocessing) -> Box | None:
    """Where attacked inputs must stay to be inputs: pixels have a range, a table's numbers have none."""
    return (0.0, 1.0) if preprocessing.unit == PIXELS else None
