"""The reader's share of a training step: a folder of JPEGs and the small convnet.

    python -m benchmarks.reading [PICTURES]

Prints the time to decode the folder once and, for pictures in memory and on disk, how long a step waits for its batch.
"""

import io
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

from lipscale.data import load_dataset, prepare
from lipscale.data.batches import epoch_batches
from lipscale.losses import offset_cross_entropy
from lipscale.models import convnet

SIZE = (160, 120)
DISTINCT = 200  # different pictures; each is written under many names
STEPS = 10
BATCH = 128


def write_folder(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    encoded = []
    for _ in range(DISTINCT):
        noise = rng.integers(0, 256, (SIZE[1] // 8, SIZE[0] // 8, 3), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(noise).resize(SIZE, Image.Resampling.BICUBIC).save(out, "JPEG", quality=85)
        encoded.append(out.getvalue())
    for i in range(count):
        path = folder / f"class{i % 10}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded[i % DISTINCT])


def share_of_reading(folder: Path) -> tuple[float, float, float]:
    """Seconds to decode the folder, and mean seconds of a step's wait for its batch and of the whole step."""
    start = time.perf_counter()
    dataset, preprocessing = prepare(load_dataset(str(folder)))
    decoding = time.perf_counter() - start
    net = convnet(10, 3, mean=preprocessing.mean)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batches = epoch_batches(dataset.train, BATCH, augmentation="crop+flip", seed=0, stream=("train",))
    waits, steps = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        inputs, labels = next(batches)
        waits.append(time.perf_counter() - start)
        optimizer.zero_grad()
        offset_cross_entropy(net(inputs), labels).backward()
        optimizer.step()
        steps.append(time.perf_counter() - start)
    batches.close()
    return decoding, float(np.mean(waits[2:])), float(np.mean(steps[2:]))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as room:
        write_folder(Path(room), count)
        for where, memory in (("in memory", 1 << 62), ("on disk", 0)):
            with patch("lipscale.data.pictures.available_memory", lambda memory=memory: memory):
                decoding, wait, step = share_of_reading(Path(room))
            print(
                f"{count} JPEGs of {SIZE[0]}x{SIZE[1]}, {where}: decoded once in {decoding:.1f} s "
                f"({1000 * decoding / count:.2f} ms each); a step takes {1000 * step:.0f} ms, of which it waits "
                f"{1000 * wait:.1f} ms for its batch ({wait / step:.1%})",
                flush=True,
            )


if __name__ == "__main__":
    main()
