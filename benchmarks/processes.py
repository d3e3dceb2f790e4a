"""What training on several processes costs: `torchrun --nproc-per-node 2 benchmarks/processes.py`, and the same with 1.

CPU-seconds of each process, since cores may be shared: on free cores N processes are faster than one by its CPU-seconds
over theirs. What waits for others costs none; the images a second by the clock have it.
`--shares` tells where the CPU-seconds go.
"""

import argparse
import time
from collections import Counter

import torch
import torch.distributed as dist

from lipscale import _processes, fit, models
from lipscale._processes import count, is_first
from lipscale.data import Samples
from lipscale.layers import centering, kernel, orthogonal
from lipscale.training import algorithm, epoch, optimizer
from lipscale.training.batches import SampleBatches
from lipscale.training.distributed import together


class Shares:
    """CPU-seconds of named parts; what a part does within another counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.within: list[str] = ["the network"]
        self.since = time.process_time()

    def _go_on(self) -> None:
        now = time.process_time()
        self.seconds[self.within[-1]] += now - self.since
        self.since = now

    def watch(self, place, name: str, part: str) -> None:
        """Count what a function or method takes."""
        call = getattr(place, name)

        def watched(*args, **kwargs):
            self._go_on()
            self.within.append(part)
            try:
                return call(*args, **kwargs)
            finally:
                self._go_on()
                self.within.pop()

        setattr(place, name, staticmethod(watched) if place.__name__.startswith("_") else watched)

    def watch_all(self) -> None:
        self.watch(_processes, "_of_all", "communication")
        for name in ("all_reduce", "broadcast_object_list", "all_gather_object"):
            self.watch(dist, name, "communication")
        for name in ("forward", "backward"):
            self.watch(centering._Centre, name, "centering")
            self.watch(orthogonal._GramSchmidt, name, "kernels")
            self.watch(kernel._Widen, name, "kernels")
        self.watch(optimizer.PlannedMuon, "step", "optimizer")
        self.watch(epoch, "finish_weights", "feedback")
        self.watch(algorithm, "predict", "feedback")


def measure(build, samples: int, epochs: int, batch: int, precision: str, shares: bool) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (samples, 3, 32, 32), generator=generator, dtype=torch.uint8)
    data = Samples(images, torch.randint(10, (samples,), generator=generator))
    train, calibration = (SampleBatches(part, batch, "crop+flip") for part in data.cut(samples - samples // 10))
    marks = []
    plan = {"epochs": epochs, "phase2_epochs": 0, "batch_size": batch, "precision": precision}
    parts = Shares()
    if shares:
        parts.watch_all()

    def mark() -> bool:
        marks.append((time.process_time(), time.perf_counter()))
        if len(marks) == len(train):  # the first epoch warms up
            parts._go_on()
            parts.seconds.clear()
        return False

    fit(build(), train, calibration, **plan, progress=False, should_stop=mark)
    parts._go_on()
    (cpu, wall), (cpu_end, wall_end) = marks[len(train) - 1], marks[-1]
    if is_first():
        images = len(train) * (epochs - 1) * batch
        print(f"{count()} processes: {images / (cpu_end - cpu):.0f} images a CPU-second of a process, ", end="")
        print(f"{images / (wall_end - wall):.0f} a second by the clock")
        whole = sum(parts.seconds.values())
        for part, seconds in parts.seconds.most_common() if shares else ():
            print(
                f"  {part}: {100 * seconds / whole:.1f} %, {1000 * seconds / (epochs - 1) / len(train):.1f} ms a step"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="convnet", choices=["convnet", "resnet18", "patchnet"])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--samples", type=int, default=1280)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--shares", action="store_true")
    options = parser.parse_args()
    size = {"image_size": 32} if options.model == "patchnet" else {}
    with together():
        build = getattr(models, options.model)
        net = lambda: build(10, 3, options.width, **size)  # noqa: E731
        measure(net, options.samples, options.epochs, options.batch, options.precision, options.shares)


if __name__ == "__main__":
    main()
