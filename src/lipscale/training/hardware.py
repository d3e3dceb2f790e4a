"""What this machine is good at: bfloat16, memory that stays at hand, and threads where there is work for them."""

import ctypes
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from threadpoolctl import threadpool_limits

log = logging.getLogger("lipscale")

# of glibc's mallopt
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE, LARGE_BEFORE_2_35 = 2**30, 2**25  # older ones refuse more


def has_bfloat16(device: torch.device) -> bool:
    """Whether the processor computes in bfloat16 itself; others emulate it, and are slower than in float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # torch has no public ones
    return device.type == "cpu" and any(getattr(torch.cpu, name, lambda: False)() for name in names)


@cache
def warn_of_emulation(device: torch.device) -> None:
    """Say, once, what bfloat16 costs where it is asked for and the processor has none."""
    if not has_bfloat16(device):
        log.warning(
            f"this processor emulates bfloat16: a product of matrices takes {_slowdown(device):.1f} times as long as "
            "in float32; leave `precision` at auto or set it to float32"
        )


def _slowdown(device: torch.device) -> float:
    """The time of a product in bfloat16 over that in float32, the better of three each."""
    taken = {}
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(512, 512, dtype=dtype, device=device)
        times = []
        for _ in range(4):  # the first one warms up
            start = time.perf_counter()
            (matrix @ matrix).sum().item()
            times.append(time.perf_counter() - start)
        taken[dtype] = min(times[1:])
    return taken[torch.bfloat16] / taken[torch.float32]


def keep_freed_memory() -> None:
    """Let glibc keep what a step frees for the next one, which needs the same again.

    By default it gives large blocks back to the system, which then clears them anew, page by page: a sixth of the time
    of a step of small networks on large batches. Elsewhere, nothing happens.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    # without the first the second would make things worse: it also ends glibc's own adjustment of both
    if mallopt(M_MMAP_THRESHOLD, LARGE) or mallopt(M_MMAP_THRESHOLD, LARGE_BEFORE_2_35):
        mallopt(M_TRIM_THRESHOLD, 2 * LARGE - 1)


@contextmanager
def one_thread(*, when: bool = True) -> Iterator[None]:
    """Within, torch and what scikit-learn computes with use one thread; afterwards as many as before.

    Threads wait for each other at every operation. Where those are small, and other programs use the cores too, waiting
    is all that they do: a table of 142 rows took 119 CPU-seconds instead of 2 (TABLES.md).
    """
    before = torch.get_num_threads()
    with threadpool_limits(1 if when else None):
        torch.set_num_threads(1 if when else before)
        try:
            yield
        finally:
            torch.set_num_threads(before)
