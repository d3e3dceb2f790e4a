"""Shuffled batches on the device, with augmentation of whole batches at once."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from lipscale import _processes as processes
from lipscale._random import random_stream
from lipscale.data.dataset import Samples, as_input
from lipscale.data.stored import Stored

GREY = 128  # of bytes


def epoch_batches(
    samples: Samples,
    batch_size: int,
    *,
    seed: int,
    stream: tuple[str | int, ...],
    augmentation: str = "none",
    crop: int = 2,
    cutout: int = 0,
    jitter: float = 0.0,
    only: slice = slice(None),
) -> Iterator[tuple[Tensor, Tensor]]:
    """All samples once, shuffled, in batches of equal size give or take one; nothing is dropped.

    `only` leaves batches out, which are not read then; what is random in the others comes as if they were the first.
    The last part of `stream` counts the epochs: an image is mirrored in every other one, so that two of them show both.
    """
    generator = random_stream(seed, *stream)
    turn = bool(stream[-1] % 2) if isinstance(stream[-1], int) else False
    mirrored = (torch.rand(len(samples), generator=random_stream(seed, "mirror")) < 0.5) ^ turn
    order = torch.randperm(len(samples), generator=generator)
    batches = order.tensor_split(math.ceil(len(samples) / batch_size))[only]
    chosen = [processes.shard(indices).to(samples.labels.device) for indices in batches]
    sizes = map(len, batches)  # processes that share a batch draw for all of it, and use their share
    fetched: Iterator[Tensor] = map(samples.inputs.__getitem__, chosen)
    if isinstance(samples.inputs, Stored):
        fetched = _ahead(samples.inputs.__getitem__, chosen)
    for indices, raw, size in zip(chosen, fetched, sizes, strict=True):
        flips = mirrored[indices.cpu()].to(raw.device)
        images = augment(raw, augmentation, crop=crop, mirrored=flips, generator=generator, whole=size)
        if cutout:
            images = _cut_out(images, cutout, generator, size)
        inputs = as_input(images)
        if jitter:
            inputs = _jittered(inputs, jitter, generator, size)
        yield inputs, samples.labels[indices]


def _ahead(fetch: Callable[[Tensor], Tensor], chosen: Sequence[Tensor]) -> Iterator[Tensor]:
    """Fetch the next batch from disk while the network works on this one."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(fetch, chosen[0])
        for indices in chosen[1:]:
            current, following = following, pool.submit(fetch, indices)
            yield current.result()
        yield following.result()


def augment(
    images: Tensor,
    augmentation: str,
    *,
    crop: int,
    mirrored: Tensor,
    generator: torch.Generator,
    whole: int | None = None,
) -> Tensor:
    """Random crops, then mirror images where asked for: "none", "crop", "flip" or "crop+flip"; bytes stay bytes.

    `whole` is the size of the batch that the images are this process's share of.
    """
    steps = augmentation.split("+")
    if "crop" in steps and crop:
        images = _crop(images, crop, generator, whole or len(images))
    if "flip" in steps:
        images = images.clone()
        images[mirrored] = images[mirrored].flip(-1)
    return images


def _crop(images: Tensor, most: int, generator: torch.Generator, whole: int) -> Tensor:
    """Shift every image by its own offset in [-most, most]^2; what comes in is the image's own reflection."""
    height, width = images.shape[-2:]
    most = min(most, height - 1, width - 1)  # a reflection has no more to show
    count = 2 * most + 1
    offsets = processes.shard(torch.randint(count**2, (whole,), generator=generator)).to(images.device)
    rows, columns = (_reflected(side, most).to(images.device) for side in (height, width))
    shifted = torch.empty_like(images)
    for offset in offsets.unique().tolist():  # images of one offset together: whole blocks are copied
        chosen = (offsets == offset).nonzero().squeeze(1)
        down, right = divmod(offset, count)
        part = images[chosen].index_select(-2, rows[down : down + height])
        shifted[chosen] = part.index_select(-1, columns[right : right + width])
    return shifted


def _cut_out(images: Tensor, side: int, generator: torch.Generator, whole: int) -> Tensor:
    """Blank a square of every image in a middle grey; its centre may be any pixel, so some of it may lie outside."""
    height, width = images.shape[-2:]
    centres = processes.shard(torch.randint(height * width, (whole,), generator=generator)).to(images.device)
    inside = [
        ((torch.arange(length, device=images.device) - centre[:, None] + side // 2) // side == 0)
        for length, centre in ((height, centres // width), (width, centres % width))
    ]
    square = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return images.masked_fill(square, 0.5 if images.is_floating_point() else GREY)


def _jittered(images: Tensor, most: float, generator: torch.Generator, whole: int) -> Tensor:
    """m + c (x - m) + b, in [0, 1]: the contrast of every image about its mean m, and its brightness.

    c is uniform in [1 - most, 1 + most], b in [-most / 2, most / 2].
    """
    draws = processes.shard(torch.rand(whole, 2, generator=generator) * 2 - 1).to(images) * most
    contrast, brightness = draws[:, :, None, None, None].unbind(1)
    mean = images.mean((1, 2, 3), keepdim=True)
    return torch.lerp(mean, images, 1 + contrast).add_(brightness / 2).clamp_(0, 1)


def _reflected(side: int, most: int) -> Tensor:
    """The indices -most .. side - 1 + most, reflected at the border: 2 1 0 1 2 ..."""
    period = 2 * max(side - 1, 1)
    index = torch.arange(-most, side + most).remainder(period)
    return torch.minimum(index, period - index)
