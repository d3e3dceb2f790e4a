"""What `auto`, and a setting that is left out, mean for a network on this machine."""

import math
from typing import Any, TypeGuard, TypeVar

import torch
from torch import nn

from lipscale.layers import OrthoLinear, ScaledLayer
from lipscale.layers.families.family import MatrixOf
from lipscale.settings import TrainingSettings
from lipscale.training.hardware import has_bfloat16, warn_of_emulation

S = TypeVar("S", bound=TrainingSettings)

DEFAULT_BATCH_SIZE = 128
# relative to the size of a weight for Muon (in batches of 1,024) and AdamW, absolute for ScheduleFree
LEARNING_RATE = {"muon": 0.05, "adamw": 0.2, "schedulefree": 1e-3}
MUON_BATCH = 1024
IMAGE_LIPSCHITZ = 6.0  # L0 near where images end: ten epochs have no time for doublings
# T* from n samples costs a log-loss of 1 / (2 n) (FEEDBACK.md): with 100 half a hundredth of a nat, with 10,000 nothing
FEWEST_CALIBRATION, MOST_CALIBRATION = 100, 10_000
CALIBRATION_SHARE, LARGEST_SHARE = 0.1, 0.2  # the paper's, and what is too dear to hold out: there parts take turns
SMALL_STEP = 2**27  # products, forward: a few milliseconds of one core
# of an unconstrained network, absolute for both
UNCONSTRAINED_LEARNING_RATE = {"adamw": 2e-3, "schedulefree": 1e-3}


def decided(settings: S, net: nn.Module) -> S:
    """The settings with everything decided that they leave open."""
    device = next(net.parameters()).device
    changes: dict[str, Any] = {}
    kernels = [module.source for module in net.modules() if is_image_layer(module)]
    is_orthogonal = any(kernel.has_matrices for kernel in kernels)
    if settings.optimizer == "auto":
        # in MLPs AdamW is as good, and its steps cost less
        changes["optimizer"] = "muon" if is_orthogonal else "adamw"
    if settings.lipschitz is None and settings.is_constrained:
        changes["lipschitz"] = IMAGE_LIPSCHITZ if is_orthogonal and settings.method == "list" else 1.0
    if settings.precision == "auto":
        is_single = all(p.dtype == torch.float32 for p in net.parameters())
        changes["precision"] = "bfloat16" if is_convolutional(net) and is_single and has_bfloat16(device) else "float32"
    elif settings.precision == "bfloat16":
        warn_of_emulation(device)
    if settings.learning_rate is None:
        optimizer = changes.get("optimizer", settings.optimizer)
        changes["learning_rate"] = default_learning_rate(settings, optimizer=optimizer)
    return settings.model_copy(update=changes)


def is_image_layer(module: nn.Module) -> TypeGuard[ScaledLayer]:
    """Whether it is a constrained layer that works on the pixels of an image, and no dense one."""
    is_dense = isinstance(module, OrthoLinear) or isinstance(getattr(module, "source", None), MatrixOf)
    return isinstance(module, ScaledLayer) and not is_dense


def is_convolutional(net: nn.Module) -> bool:
    """Whether any layer of it works on the pixels of an image."""
    return any(is_image_layer(module) or isinstance(module, nn.Conv2d) for module in net.modules())


def is_small(net: nn.Module, batch_size: int) -> bool:
    """Whether a step is too little work for several threads: a dense network, with few products of weights and rows."""
    products = batch_size * sum(parameter.numel() for parameter in net.parameters())
    return products <= SMALL_STEP and not is_convolutional(net)


def calibrated(settings: S, samples: int, *, divisible: bool = True) -> S:
    """The settings with D_cal decided: its share of so many samples, and whether all parts take turns, if they can."""
    samples = max(samples, 1)
    share = min(max(CALIBRATION_SHARE, FEWEST_CALIBRATION / samples), LARGEST_SHARE, MOST_CALIBRATION / samples)
    cross_fit = settings.cross_fit if settings.method == "list" else False  # turns are taken in steering L
    if cross_fit is None:
        is_dear = LARGEST_SHARE * samples < FEWEST_CALIBRATION
        cross_fit = divisible and is_dear and settings.calibration_fraction is None
    fraction = settings.calibration_fraction or share
    return settings.model_copy(update={"calibration_fraction": fraction, "cross_fit": cross_fit})


def default_learning_rate(settings: TrainingSettings, *, optimizer: str) -> float:
    """What serves an optimizer and the kind of network that the settings name."""
    rates = LEARNING_RATE if settings.is_constrained else UNCONSTRAINED_LEARNING_RATE
    if optimizer != "muon":
        return rates[optimizer]
    # a larger batch has a gradient with less noise: its direction is worth a longer step
    return rates[optimizer] * math.sqrt((settings.batch_size or DEFAULT_BATCH_SIZE) / MUON_BATCH)
