"""The one place where a training touches chance or its fellow processes.

Whatever is drawn at random, split over, summed over or gathered from processes passes through here. Today a
training is one process and these functions are plain; to share it among several is to fill them in.

Randomness is stateless: every stream is seeded by what it is for, such as (seed, "shuffle", epoch). A resumed run
therefore draws what the uninterrupted one would have drawn, with no generator state to save.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def generator(seed: int, *stream: str | int) -> torch.Generator:
    """A fresh random stream for one purpose: the same (seed, stream), the same numbers, on every machine."""
    digest = hashlib.sha256(repr((seed, *stream)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@contextmanager
def seeded(seed: int, *stream: str | int) -> Iterator[None]:
    """Run code that draws from torch's global generator (layer initialisation) on a stream of its own."""
    # the process's generator on the CPU only: networks are built there and moved afterwards
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, *stream).initial_seed())
        yield


def shard(indices: Tensor) -> Tensor:
    """This process's share of a batch's indices."""
    return indices


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Make every process step with the gradient of the whole batch."""


def total(value: Tensor) -> Tensor:
    """The sum of a value over processes."""
    return value


def gather(rows: Tensor) -> Tensor:
    """The rows of every process, in the order of the processes."""
    return rows
