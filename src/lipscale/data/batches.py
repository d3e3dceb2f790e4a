"""Shuffled batches on the device, with augmentation of whole batches at once."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor

from lipscale import _processes as processes
from lipscale._random import random_stream
from lipscale.data.dataset import Samples, as_input
from lipscale.data.stored import Stored

CROP_PADDING = 4


def epoch_batches(
    samples: Samples, batch_size: int, *, augmentation: str, seed: int, stream: tuple[str | int, ...]
) -> Iterator[tuple[Tensor, Tensor]]:
    """All samples once, shuffled, in batches of equal size give or take one; nothing is dropped."""
    generator = random_stream(seed, *stream)
    order = torch.randperm(len(samples), generator=generator)
    batches = order.tensor_split(math.ceil(len(samples) / batch_size))
    chosen = [processes.shard(indices).to(samples.labels.device) for indices in batches]
    fetched: Iterator[Tensor] = map(samples.inputs.__getitem__, chosen)
    if isinstance(samples.inputs, Stored):
        fetched = _ahead(samples.inputs.__getitem__, chosen)
    for indices, raw in zip(chosen, fetched, strict=True):
        yield augment(as_input(raw), augmentation, generator=generator), samples.labels[indices]


def _ahead(fetch: Callable[[Tensor], Tensor], chosen: Sequence[Tensor]) -> Iterator[Tensor]:
    """Fetch the next batch from disk while the network works on this one."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(fetch, chosen[0])
        for indices in chosen[1:]:
            current, following = following, pool.submit(fetch, indices)
            yield current.result()
        yield following.result()


def augment(images: Tensor, augmentation: str, *, generator: torch.Generator) -> Tensor:
    """Random crops after zero padding, then random mirror images; "none", "crop", "flip" or "crop+flip"."""
    steps = augmentation.split("+")
    if "crop" in steps:
        images = _crop(images, generator)
    if "flip" in steps:
        mirrored = (torch.rand(len(images), generator=generator) < 0.5).to(images.device)
        images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images)
    return images


def _crop(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift every image by its own offset in [-4, 4]^2: one gather for the whole batch."""
    height, width = images.shape[-2:]
    offsets = torch.randint(2 * CROP_PADDING + 1, (2, len(images), 1), generator=generator).to(images.device)
    rows = offsets[0] + torch.arange(height, device=images.device)  # (B, H)
    columns = offsets[1] + torch.arange(width, device=images.device)  # (B, W)
    padded = F.pad(images, [CROP_PADDING] * 4).movedim(1, -1)  # (B, H', W', C)
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    return padded[batch, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
