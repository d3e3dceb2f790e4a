"""Whether data on disk keep a training step busy: images a CPU-second of the stream alone, and of the step.

    python -m benchmarks.reading [PICTURES]

A folder of JPEGs, decoded to memory or to disk, and .npz and Parquet shards of the same pictures; batches of 128 with
crops and mirror images, and the small convnet. CPU-seconds, since cores may be shared: to wait for a disk costs none.
"""

import io
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from lipscale.data import DataSettings, prepare, read_dataset
from lipscale.data.batches import epoch_batches
from lipscale.losses import offset_cross_entropy
from lipscale.models import convnet

SIZE = (160, 120)
DISTINCT = 200  # different pictures; each is written under many names
SHARDS = 8
STEPS = 10
BATCH = 128


def encoded_pictures() -> list[bytes]:
    rng = np.random.default_rng(0)
    encoded = []
    for _ in range(DISTINCT):
        noise = rng.integers(0, 256, (SIZE[1] // 8, SIZE[0] // 8, 3), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(noise).resize(SIZE, Image.Resampling.BICUBIC).save(out, "JPEG", quality=85)
        encoded.append(out.getvalue())
    return encoded


def write_all(room: Path, count: int) -> dict[str, DataSettings]:
    """The same pictures as a folder, as .npz files and as Parquet files."""
    encoded, rng = encoded_pictures(), np.random.default_rng(0)
    for i in range(count):
        path = room / "folder" / f"class{i % 10}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded[i % DISTINCT])
    for name in ("npz", "parquet"):
        (room / name).mkdir()
    for shard in np.array_split(np.arange(count), SHARDS):
        x = rng.integers(0, 256, (len(shard), 3, 64, 64), dtype=np.uint8)
        np.savez(room / "npz" / f"{shard[0]}.npz", x=x, y=shard % 10)
        cells = pa.table({"image": [{"bytes": encoded[i % DISTINCT]} for i in shard], "label": shard % 10})
        pq.write_table(cells, room / "parquet" / f"{shard[0]}.parquet")
    labels = {"folder": None, "npz": None, "parquet": "label"}
    return {name: DataSettings(data=str(room / name), label=label, image_size=64) for name, label in labels.items()}


def measure(settings: DataSettings) -> tuple[float, float, float]:
    """CPU-seconds to begin with, and for a batch: of the stream alone, and of the whole step."""
    start = time.process_time()
    dataset, preprocessing = prepare(read_dataset(settings))
    beginning = time.process_time() - start
    net = convnet(10, 3, mean=preprocessing.mean)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def batches():
        return epoch_batches(dataset.train, BATCH, augmentation="crop+flip", seed=0, stream=("train",))

    start = time.process_time()
    drawn = sum(1 for _ in batches())
    stream = (time.process_time() - start) / drawn
    some = batches()
    next(some)
    start = time.process_time()
    for _, (inputs, labels) in zip(range(STEPS), some, strict=False):
        optimizer.zero_grad()
        offset_cross_entropy(net(inputs), labels).backward()
        optimizer.step()
    step = (time.process_time() - start) / STEPS
    some.close()
    return beginning, stream, step


def main() -> None:
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as room:
        sets = write_all(Path(room), count)
        for name, where, memory in (
            ("folder", "in memory", 1 << 62), ("folder", "on disk", 0), ("npz", "on disk", 0), ("parquet", "on disk", 0)
        ):  # fmt: skip
            with patch("lipscale.data.pictures.available_memory", lambda memory=memory: memory):
                beginning, stream, step = measure(sets[name])
            print(
                f"{count} pictures, {name}, {where}: {beginning:.1f} CPU-s to begin with; the stream gives "
                f"{BATCH / stream:.0f} images a CPU-second, the step takes {BATCH / step:.0f}: {stream / step:.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
