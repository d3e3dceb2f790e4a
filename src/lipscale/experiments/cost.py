"""What a run will cost on this machine, asked before it starts: two small training steps are timed and extrapolated."""

import math
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from lipscale.certificates.robustness import BATCH as ATTACK_BATCH
from lipscale.data import Preprocessing
from lipscale.data.memory import available_memory, gigabytes
from lipscale.errors import UserError
from lipscale.experiments.plan import AttackBudget
from lipscale.runs.assembly import build_network, read_data, resolve_model
from lipscale.runs.settings import Settings
from lipscale.training.algorithm import DEFAULT_BATCH_SIZE
from lipscale.training.optimizer import new_optimizer
from lipscale.training.settings import CONSTRAINED, planned_epochs

BATCHES = (8, 32)  # the two batch sizes that are tried; time and memory are linear in it
EVALUATION_BATCH = 512
PROCESS = 550_000_000  # bytes of Python with torch, scikit-learn and the compiled kernels
ENOUGH = 0.5  # seconds of trying a batch size
START = 10.0  # seconds to import, read, evaluate and write
# methods that attack every training batch; an attack's step costs about as much as ours
ADVERSARIAL = ("pgd-at", "caat")
# passes of an attack, forward and backward, at most: what is broken is left alone. AutoAttack: 100 steps of APGD, as
# many for each of nine targets, as many of FAB again, and 5,000 queries of Square, which need no backward pass
PASSES = {"pgd": 120, "autoattack": 100 + 900 + 900 + 1700}


@dataclass(frozen=True)
class Cost:
    """An estimate; a run whose own rule stops it early costs less."""

    seconds: float
    memory_bytes: int


@dataclass(frozen=True)
class Size:
    """As much of a data set as its cost depends on."""

    train: int
    test: int
    classes: int
    shape: tuple[int, ...]
    value_bytes: int = 1

    @property
    def bytes(self) -> int:
        """Of all inputs in memory."""
        return (self.train + self.test) * math.prod(self.shape) * self.value_bytes


# of the sets as they are published, so that nothing need be read, or be there; a subset on disk costs less
SIZES = {
    "digits": Size(1437, 360, 10, (1, 8, 8), 4),
    "mnist": Size(60000, 10000, 10, (1, 28, 28)),
    "fashion-mnist": Size(60000, 10000, 10, (1, 28, 28)),
    "cifar10": Size(50000, 10000, 10, (3, 32, 32)),
    "cifar100": Size(50000, 10000, 100, (3, 32, 32)),
    "tiny-imagenet": Size(100000, 10000, 200, (3, 64, 64)),
}


@dataclass(frozen=True)
class Line:
    """fixed + each * batch."""

    fixed: float
    each: float

    @classmethod
    def through(cls, values: tuple[float, float]) -> "Line":
        """Through the values at both BATCHES; neither part is negative."""
        small, large = BATCHES
        each = max(0.0, (values[1] - values[0]) / (large - small))
        return cls(max(0.0, values[0] - each * small), each)

    def at(self, batch: float) -> float:
        """The value for a batch of this size."""
        return self.fixed + self.each * batch


@dataclass(frozen=True)
class Step:
    """What a training step costs: seconds, bytes that backward needs, and bytes of weights, gradients and moments."""

    seconds: Line
    saved: Line
    state: int


def estimate(settings: Settings, *, data_dir: Path | None = None, attack: AttackBudget | None = None) -> Cost:
    """What a run with these settings will take here, and its attack; for the most epochs, where it may stop before.

    Time is within a factor of 2 of what was measured (MLPs, a convnet and ResNet-18 of width 16, on the CPU); memory is
    rather too large than too small: 8 to 50 % above the peak of those runs.
    """
    size = size_of(settings, data_dir=data_dir)
    train = min(size.train, settings.limit or size.train)
    calibration = round(settings.calibration_fraction * train) if settings.method == "list" else 0
    batch = min(settings.batch_size or DEFAULT_BATCH_SIZE, train - calibration)
    step = _step(_essential(settings, size), size)

    phase1, phase2 = planned_epochs(settings)
    attack_steps = settings.attack_steps if settings.method in ADVERSARIAL else 0
    seconds = START
    for epochs, samples in ((phase1, train - calibration), (phase2, train)):
        steps = math.ceil(samples / batch)
        measuring = min(steps, settings.centering_batches) * batch + calibration  # forward only: a third of a step
        seconds += epochs * (steps * step.seconds.at(batch) * (1 + attack_steps) + step.seconds.each * measuring / 3)
    seconds += step.seconds.each * size.test / 3
    if attack is not None:
        attacked = min(attack.samples, size.test)
        batches = math.ceil(attacked / ATTACK_BATCH)
        seconds += PASSES[attack.name] * batches * step.seconds.at(min(attacked, ATTACK_BATCH))

    # data are read whole, then chosen from: two copies for a moment
    evaluation = step.saved.each * EVALUATION_BATCH / 4  # without gradients only a few layers' values live at a time
    working = max(step.saved.at(batch), evaluation)
    return Cost(seconds, round(PROCESS + 2 * size.bytes + step.state + 2 * working))


def require_memory(settings: Settings, *, data_dir: Path | None = None, copies: int = 1) -> Cost:
    """The estimate, or an error where so many runs like this one do not fit beside each other: what to change."""
    cost, free = estimate(settings, data_dir=data_dir), available_memory()
    if copies * cost.memory_bytes > free:
        what, fewer = (f"{copies} runs like this", "fewer runs at a time, ") if copies > 1 else ("this run", "")
        needed = gigabytes(copies * cost.memory_bytes)
        raise UserError(
            f"{what} would take about {needed} of memory and {gigabytes(free)} are free: "
            f"give {fewer}a smaller --batch-size than {settings.batch_size or DEFAULT_BATCH_SIZE} or a smaller --width"
        )
    return cost


def size_of(settings: Settings, *, data_dir: Path | None = None) -> Size:
    """The size of a named set as it is published; other data are read."""
    if settings.data in SIZES:
        return SIZES[settings.data]
    # runs that differ in other things share one reading
    about = (
        "data",
        "label",
        "drop",
        "categories",
        "test_data",
        "test_fraction",
        "image_size",
        "image_fit",
        "image_color",
    )
    return _read_size(Settings.model_validate({name: getattr(settings, name) for name in about}), data_dir)


@lru_cache
def _read_size(settings: Settings, data_dir: Path | None) -> Size:
    dataset, preprocessing = read_data(settings, data_dir=data_dir)
    per_value = dataset.train.inputs.dtype.itemsize
    return Size(len(dataset.train), len(dataset.test), len(dataset.classes), preprocessing.input_shape, per_value)


def _essential(settings: Settings, size: Size) -> Settings:
    """What a step's cost depends on, so that runs that differ in other things share one measurement."""
    names = ("width", "depth", "layers", "padding", "optimizer", "precision")
    kept = {name: getattr(settings, name) for name in names}
    method = "fixed" if settings.method in CONSTRAINED else "standard"
    return Settings.model_validate({"model": resolve_model(settings.model, size.shape), "method": method, **kept})


@lru_cache
def _step(settings: Settings, size: Size) -> Step:
    """Train a few steps on noise at each of two batch sizes; the fastest counts."""
    preprocessing = _preprocessing(size.shape)
    net = build_network(settings, size.classes, preprocessing).train()
    optimizer = new_optimizer(net, settings)
    optimizer.train()
    generator = torch.Generator().manual_seed(0)
    seconds, saved = [], []
    for batch in BATCHES:
        inputs = torch.rand(batch, *size.shape, generator=generator)
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)  # as in training
        labels = torch.randint(size.classes, (batch,), generator=generator)
        found: dict[int, int] = {}

        def keep(tensor: Tensor, found: dict[int, int] = found) -> Tensor:
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        times: list[float] = []
        while sum(times) < ENOUGH and len(times) < 5:  # the first one of a small network only warms up
            start = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                loss = F.cross_entropy(net(inputs), labels)
            if not times:
                saved.append(float(sum(found.values())))
            loss.backward()
            optimizer.step()
            times.append(time.perf_counter() - start)
        seconds.append(min(times))
    weights = sum(p.nbytes for p in net.parameters())
    # weights, gradients, two moments, and a copy on the way to the checkpoint
    return Step(Line.through((seconds[0], seconds[1])), Line.through((saved[0], saved[1])), 6 * weights)


def _preprocessing(shape: tuple[int, ...]) -> Preprocessing:
    columns = shape[0] if len(shape) == 1 else 0
    return Preprocessing(shape, (0.0,) * shape[0], column_mean=(0.0,) * columns, column_std=(1.0,) * columns)
