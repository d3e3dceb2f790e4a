"""What a step of the paper's ResNet-18 costs on many GPUs, on paper: `python -m benchmarks.scale [--batch 256]`.

Counted: parameters, bytes and floating-point operations, from the network itself. Assumed: what a GPU and a network of
them do a second (the flags). docs/SCALE.md says what follows.
"""

import argparse
import math
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from lipscale import export_plain, models
from lipscale.layers import BatchCentering
from lipscale.training.optimizer import PlannedMuon

NUMBER = 4  # bytes of a float32
CALIBRATION, IMAGES, CENTERING_BATCHES = 5000, 45_000, 50  # the paper's CIFAR-10


@dataclass(frozen=True)
class Counts:
    """What is counted of a network: of a step, or of each image of it."""

    parameters: int
    channels: tuple[int, ...]  # of each centering layer
    image: float  # operations, forward and backward
    weights: float  # operations that make the kernels and their gradients, whatever the batch
    optimizer: float
    frames: int  # stacks of frames that are decomposed
    kernels: int  # numbers of all kernels and matrices once they are made

    @property
    def gradient_bytes(self) -> int:
        """Sent once a step, with the sum of losses and the weight of the batch."""
        return NUMBER * (self.parameters + 2)

    @property
    def centering_bytes(self) -> tuple[int, ...]:
        """Of each message: the means of a layer's channels and the weight of the share, forward and backward."""
        return tuple(NUMBER * (channels + 1) for channels in self.channels for _ in range(2))


def count(net: torch.nn.Module, size: int = 32, channels: int = 3) -> Counts:
    """Operations are linear in the images of a batch: two batches tell the slope and what is left at none."""
    optimizer = PlannedMuon(net.parameters(), learning_rate=0.01, weight_decay=0.0)

    def step(images: int) -> int:
        with FlopCounterMode(display=False) as counter:
            net(torch.rand(images, channels, size, size)).sum().backward()
        return counter.get_total_flops()

    few, more = step(2), step(4)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    made = [p for p in export_plain(net.eval()).parameters() if p.ndim > 1]
    return Counts(
        parameters=sum(p.numel() for p in net.parameters()),
        channels=tuple(m.bias.numel() for m in net.modules() if isinstance(m, BatchCentering)),
        image=(more - few) / 2,
        weights=2 * few - more,
        optimizer=counter.get_total_flops(),
        frames=sum(p.ndim > 1 for p in net.parameters()),
        kernels=sum(p.numel() for p in made),
    )


@dataclass(frozen=True)
class Cluster:
    """What is assumed: of A100s, eight a machine, with NVLink within and InfiniBand between."""

    rate: float = 8e12  # operations a second that a GPU sustains in float32
    reduced: float = 60e12  # in bfloat16: Muon's steps
    decomposition: float = 1e-4  # seconds of a stack's Cholesky decomposition and triangular solve
    exact: float = 1.35  # seconds to make all exact evaluation weights, once an epoch: measured on two cores (SPEED.md)
    within: tuple[float, float] = (250e9, 2e-5)  # bytes a second and seconds a message, up to 8 GPUs
    between: tuple[float, float] = (25e9, 5e-5)

    def seconds(self, counts: Counts, gpus: int, batch: int, *, spread: bool = False) -> dict[str, float]:
        """Of a step, part by part; `spread` makes each GPU compute its share of the kernels and of Muon's steps."""
        bandwidth, latency = self.within if gpus <= 8 else self.between
        ring = 2 * (gpus - 1) / gpus / bandwidth
        weights = counts.weights / self.rate + counts.frames * self.decomposition
        optimizer = counts.optimizer / self.reduced
        shared = NUMBER * (counts.kernels + counts.parameters) * ring / 2 + 2 * latency if spread else 0.0
        alone = gpus == 1
        return {
            "images": math.ceil(batch / gpus) * counts.image / self.rate,
            "weights": weights / (gpus if spread else 1) + shared,
            "optimizer": optimizer / (gpus if spread else 1),
            "gradient": 0.0 if alone else counts.gradient_bytes * ring + latency,
            "centering": 0.0 if alone else sum(b * ring + latency for b in counts.centering_bytes),
        }

    def feedback(self, counts: Counts, gpus: int, batch: int) -> float:
        """Seconds an epoch: exact weights in every process, then the means' batches and the calibration set, shared."""
        forward = counts.image / 3 / self.rate
        images = math.ceil((min(CENTERING_BATCHES * batch, IMAGES) + CALIBRATION) / gpus)
        return self.exact + images * forward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, help="of all GPUs together; left out: 256, and 128 a GPU")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rate", type=float, default=Cluster.rate)
    options = parser.parse_args()
    counts, cluster = count(models.resnet18(width=options.width)), Cluster(rate=options.rate)
    print(f"{counts.parameters:,} parameters, {counts.gradient_bytes / 1e6:.1f} MB of gradients a step; ", end="")
    print(f"{counts.kernels:,} numbers in the kernels that they make")
    print(f"centering: {len(counts.centering_bytes)} messages, {sum(counts.centering_bytes) / 1e3:.1f} kB a step")
    print(f"GFLOP: {counts.image / 1e9:.2f} an image, {counts.weights / 1e9:.1f} kernels, ", end="")
    print(f"{counts.optimizer / 1e9:.1f} Muon\n")
    print("| GPUs | batch | images | kernels | Muon | gradient | centering | step, ms | if spread | feedback, % |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for gpus in (1, 8, 64):
        for batch in [options.batch] if options.batch else sorted({256, 128 * gpus}):
            parts = cluster.seconds(counts, gpus, batch)
            step, spread = sum(parts.values()), sum(cluster.seconds(counts, gpus, batch, spread=gpus > 1).values())
            feedback = cluster.feedback(counts, gpus, batch)
            share = feedback / (feedback + step * math.ceil(IMAGES / batch))
            cells = " | ".join(f"{1000 * seconds:.1f}" for seconds in (*parts.values(), step, spread))
            print(f"| {gpus} | {batch} | {cells} | {100 * share:.0f} |")


if __name__ == "__main__":
    main()
