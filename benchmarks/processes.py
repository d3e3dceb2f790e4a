"""What training on several processes costs: `torchrun --nproc-per-node 2 benchmarks/processes.py`, and the same with 1.

CPU-seconds of each process, since cores may be shared: on free cores N processes are faster than one by its CPU-seconds
over theirs. What waits for others costs none; the share of time that goes into waiting is given by the wall clock.
"""

import argparse
import time

import torch

from lipscale import fit, models
from lipscale._processes import count, is_first
from lipscale.data import Samples
from lipscale.training.batches import SampleBatches
from lipscale.training.distributed import together

BATCH = 128


def measure(build, samples: int, epochs: int, precision: str) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (samples, 3, 32, 32), generator=generator, dtype=torch.uint8)
    data = Samples(images, torch.randint(10, (samples,), generator=generator))
    train, calibration = (SampleBatches(part, BATCH, "crop+flip") for part in data.cut(samples - BATCH))
    marks = []
    plan = {"epochs": epochs, "phase2_epochs": 0, "batch_size": BATCH, "precision": precision}

    def mark() -> bool:
        marks.append((time.process_time(), time.perf_counter()))
        return False

    fit(build(), train, calibration, **plan, progress=False, should_stop=mark)
    (cpu, wall), (cpu_end, wall_end) = marks[len(train) - 1], marks[-1]  # the first epoch warms up
    if is_first():
        images = len(train) * (epochs - 1) * BATCH
        print(f"{count()} processes: {images / (cpu_end - cpu):.0f} images a CPU-second of a process, ", end="")
        print(f"{images / (wall_end - wall):.0f} a second by the clock")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="convnet", choices=["convnet", "resnet18", "patchnet"])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--samples", type=int, default=1280)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args()
    size = {"image_size": 32} if options.model == "patchnet" else {}
    with together():
        build = getattr(models, options.model)
        measure(lambda: build(10, 3, options.width, **size), options.samples, options.epochs, options.precision)


if __name__ == "__main__":
    main()
