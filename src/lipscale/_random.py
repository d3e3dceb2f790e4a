"""Randomness without state: every stream is seeded by what it is for, such as (seed, "shuffle", epoch).

A resumed run therefore draws what the uninterrupted one would have drawn, with no generator state to save.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def random_stream(seed: int, *purpose: str | int) -> torch.Generator:
    """A fresh generator for one purpose: the same (seed, purpose), the same numbers, on every machine."""
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@contextmanager
def seeded(seed: int, *purpose: str | int) -> Iterator[None]:
    """Run code that draws from torch's global generator (layer initialisation) on a stream of its own."""
    # the process's generator on the CPU only: networks are built there and moved afterwards
    with torch.random.fork_rng(devices=[]):
        number = random_stream(seed, *purpose).initial_seed()
        torch.default_generator.manual_seed(number)
        # torch.manual_seed would queue a call, with the whole stack in words, for each device that is not there
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(number)
        yield
