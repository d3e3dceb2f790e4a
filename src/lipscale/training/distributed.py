"""One training on many processes: how they come together, and what must be the same in all of them."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lipscale import _processes as processes
from lipscale._log import errors_only
from lipscale.errors import UserError
from lipscale.settings import TrainingSettings
from lipscale.training.algorithm import Training
from lipscale.training.batches import Batches
from lipscale.training.checkpoint import digest_of

# A process that is killed closes its connections and is missed at once, a machine without power after this time.
# On GPUs the first batch may well take longer.
SILENCE = {"cpu": timedelta(minutes=1), "cuda": timedelta(minutes=10)}


@contextmanager
def together() -> Iterator[None]:
    """Within, the processes that torchrun has started train as one; without torchrun nothing is different."""
    if dist.is_initialized() or not processes.started_by_torchrun() or int(os.environ["WORLD_SIZE"]) == 1:
        yield
        return
    kind, local = "cuda" if torch.cuda.is_available() else "cpu", int(os.environ["LOCAL_RANK"])
    if kind == "cuda" and local < torch.cuda.device_count():
        torch.cuda.set_device(local)  # what `cuda` means from now on
    dist.init_process_group("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo", timeout=SILENCE[kind])
    try:
        with nullcontext() if processes.is_first() else errors_only():  # all of them would say the same
            yield
    finally:
        dist.destroy_process_group()


def require_room(
    net: nn.Module,
    settings: TrainingSettings,
    train: Batches,
    calibration: Batches | None,
    turns: Sequence[Batches] = (),
) -> None:
    """Refuse what several processes cannot do as one does, before anything is trained or written."""
    count = processes.count()
    if count == 1:
        return
    if settings.compile:
        raise UserError("`compile` is for one process: leave it out where several train together")
    if any(isinstance(m, _BatchNorm) and not isinstance(m, nn.SyncBatchNorm) for m in net.modules()):
        reason = "batch normalisation would see its process's share of a batch alone"
        raise UserError(f"{reason}: train this network in one process")
    local, there = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), torch.cuda.device_count()
    if next(net.parameters()).device.type == "cuda" and local > there:
        raise UserError(f"{local} processes for {there} GPUs: start one a GPU, or use cpu as `device`")
    held_out = 0 if calibration is None else calibration.size
    # of Phase I, of Phase II, and without each part that takes its turn in calibration
    for size in (train.size, train.size + held_out, *(train.size - part.size for part in turns)):
        if (least := train.smallest(size)) < count:
            batch = f"a batch of {least} samples ({size} in batches of {settings.batch_size})"
            raise UserError(f"{count} processes cannot share {batch}: give a larger `batch_size`, or fewer processes")
    least = min((part.size for part in (*turns, *([] if calibration is None else [calibration]))), default=count)
    if least < count:
        raise UserError(f"{count} processes cannot share {least} calibration samples: start fewer processes")


def require_agreement(training: Training) -> None:
    """Every process must see the same data and settings."""
    if processes.count() > 1:
        processes.require_same("settings, network or numbers of samples", digest_of(training))
        processes.require_same("data", training.train.glimpse())
