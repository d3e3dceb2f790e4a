"""Time things side by side, and the memory of one thing alone."""

import json
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

WARM_UP = 1


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median, and the quartiles as its spread."""

    median: float
    low: float
    high: float


def interleaved(calls, rounds):
    """Time named calls in turns, so that whatever else the machine does hits all of them alike."""
    seconds = {name: [] for name in calls}
    for i in range(WARM_UP + rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if i >= WARM_UP:
                seconds[name].append(time.perf_counter() - start)
    return {name: _timing(values) for name, values in seconds.items()}


def _timing(values):
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return Timing(statistics.median(values), low, high)


def peak_memory(name, width):
    """The megabytes that building a network and two training steps add to a fresh process at their peak."""
    command = [sys.executable, "-m", "benchmarks.measure", name, str(width)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def peak_rss():
    # not getrusage: on Linux its peak is inherited from the process that started this one
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


if __name__ == "__main__":
    from benchmarks.contestants import CONTESTANTS, EXTRA, Contestant

    before = peak_rss()
    contestant = Contestant({**CONTESTANTS, **EXTRA}[sys.argv[1]], int(sys.argv[2]))
    contestant.train_step()
    contestant.train_step()
    print(round(peak_rss() - before, 1))
