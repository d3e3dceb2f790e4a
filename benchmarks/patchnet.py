"""A training step of patchnet, all included, against that of its unconstrained twin: CPU time in one run, one thread.

python -m benchmarks.patchnet --width 32 64 128 192 --batch 1024 --rounds 7
"""

import argparse
import statistics
import subprocess
import sys
import time

import torch

from lipscale import _processes, models
from lipscale._random import random_stream
from lipscale.data import Samples
from lipscale.settings import TrainingSettings
from lipscale.training.batches import SampleBatches
from lipscale.training.epoch import train_step
from lipscale.training.fitting import new_training
from lipscale.training.optimizer import set_share

CONTESTANTS = {
    "mirrored": (models.LIPSCHITZ, {"mirror": True}, {}),
    "not mirrored": (models.LIPSCHITZ, {}, {}),
    "twin": (models.UNCONSTRAINED, {}, {"method": "standard"}),
}


def training_of(name, width, batch):
    """A training that is ready to take steps as `lipscale train` does, and a batch."""
    parts, options, settings = CONTESTANTS[name]
    samples = Samples(torch.randint(256, (batch, 3, 32, 32), dtype=torch.uint8), torch.arange(batch) % 10)
    net = models.patchnet(width=width, parts=parts, **options)
    values = TrainingSettings.model_validate({**settings, "batch_size": batch, "calibration_fraction": 0.1})
    data = SampleBatches(samples, batch, "crop+flip")
    training = new_training(net, data, None if settings else data, values.model_dump())
    set_share(training.optimizer, 0.01)
    training.net.train()
    return training, next(iter(data.epoch("step", 1)))


def seconds_of(training, batch):
    """The CPU time of one step."""
    start = time.process_time()
    train_step(training, *batch, random_stream(0, "step"))
    return time.process_time() - start


def memory_of(name, width, batch):
    """Megabytes that two steps take beyond the interpreter, PyTorch and the data: of a process of its own."""
    code = (
        "import torch; torch.set_num_threads(1); from benchmarks import measure, patchnet as p; "
        f"t, b = p.training_of({name!r}, {width}, {batch}); before = measure.peak_rss(); "
        "p.seconds_of(t, b); p.seconds_of(t, b); print(measure.peak_rss() - before)"
    )
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, nargs="+", default=[32, 64, 96])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    _processes.clock = time.process_time
    print("| width | " + " | ".join(CONTESTANTS) + " | mirrored / twin | not mirrored / twin | memory of a step, MB |")
    print("|---" * (len(CONTESTANTS) + 4) + "|")
    for width in options.width:
        ready = {name: training_of(name, width, options.batch) for name in CONTESTANTS}
        for each in ready.values():
            seconds_of(*each)
        # in turns: what else the machine does meets all of them
        rounds = [{name: seconds_of(*each) for name, each in ready.items()} for _ in range(options.rounds)]
        middle = {name: statistics.median(taken[name] for taken in rounds) for name in CONTESTANTS}
        memory = " / ".join(f"{memory_of(name, width, options.batch):.0f}" for name in CONTESTANTS)
        times = " | ".join(f"{1e3 * seconds:.0f} ms" for seconds in middle.values())
        ratios = " | ".join(f"{middle[name] / middle['twin']:.2f}" for name in ("mirrored", "not mirrored"))
        print(f"| {width} | {times} | {ratios} | {memory} |", flush=True)


if __name__ == "__main__":
    main()
