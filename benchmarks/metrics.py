"""All scalar metrics of a million predictions, with floor, limit and intervals: `python -m benchmarks.metrics`."""

import time

import torch

from lipscale.metrics import measure


def main(samples: int = 1_000_000, classes: int = 10, repeats: int = 3) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(samples, classes, generator=generator)
    labels = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator).squeeze(1)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        found = measure(logits, labels, calibration_size=5000)
        seconds.append(time.perf_counter() - start)
    shown = ", ".join(f"{s:.2f}" for s in seconds)
    print(f"{samples:,} x {classes} logits on {torch.get_num_threads()} threads: {shown} s")
    for name, value in vars(found).items():
        if isinstance(value, float):
            print(f"  {name:18} {value:.6f}  {getattr(found.intervals, name, '')}")


if __name__ == "__main__":
    main()
