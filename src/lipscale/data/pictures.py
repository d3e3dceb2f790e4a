"""One picture file -> bytes of the wanted size and colour; and many of them, decoded by a pool of workers."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from io import BytesIO
from itertools import islice
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps

from lipscale.data.dataset import Samples
from lipscale.data.memory import available_memory, decoding, reading
from lipscale.data.stored import Stored, written
from lipscale.errors import UserError

# decoders that only compute; Pillow has others that start programs (EPS starts Ghostscript)
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm")
MOST_PIXELS = 50_000_000  # twice that for a JPEG, which is decoded at a fraction of its size
LARGE = 8_000_000  # pixels; larger ones are decoded one at a time, as each takes up to 600 megabytes
GREY_MODES = ("1", "L", "LA")
AHEAD = 64  # pictures that a worker may be ahead
LARGE_ONES = Lock()
# damaged pictures are errors with a name here; Pillow's warnings on the way there would only be noise
quiet_pillow = partial(warnings.catch_warnings, action="ignore")

S = TypeVar("S")
T = TypeVar("T")


Source = Path | tuple[bytes, str]  # a file, or what another file holds, and a name for it


def look(source: Source) -> tuple[tuple[int, int], bool]:
    """A picture's height and width, and whether it is grey, without decoding it."""
    with _opened(source) as picture:
        turned = picture.getexif().get(0x0112) in (5, 6, 7, 8)  # a camera held upright
        width, height = picture.size[::-1] if turned else picture.size
        return (height, width), picture.mode in GREY_MODES


def read_picture(source: Source, shape: tuple[int, ...], *, fit: str) -> np.ndarray:
    """A picture as bytes of shape (C, H, W), see `as_bytes`."""
    with _opened(source) as picture, LARGE_ONES if prod(picture.size) > LARGE else nullcontext():
        return as_bytes(picture, shape, fit=fit, name=str(source[1] if isinstance(source, tuple) else source))


def as_bytes(picture: Image.Image, shape: tuple[int, ...], *, fit: str, name: str) -> np.ndarray:
    """A picture as bytes of shape (C, H, W): grey for one channel, else RGB.

    `fit` says what to do with another size: "crop" scales it to cover and cuts the rest off evenly, "stretch" ignores
    the proportions, "pad" scales it to fit and adds black. What shines through a transparent picture is white.
    """
    channels, height, width = shape
    if picture.mode.startswith(("I", "F")):
        raise UserError(f"{name} has more than 8 bits a pixel ({picture.mode}); convert it to 8 bits first")
    large = prod(picture.size) > LARGE
    picture.draft(None, (2 * width, 2 * height))  # a large JPEG is decoded at a fraction of its size
    seen = ImageOps.exif_transpose(_reduced(picture, 2 * max(width, height)) if large else picture)
    if seen.has_transparency_data:
        seen = seen.convert("RGBA")
        seen = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
    seen = seen.convert("L" if channels == 1 else "RGB")
    if seen.size != (width, height):
        resize: Any = {"crop": ImageOps.fit, "pad": ImageOps.pad}.get(fit, Image.Image.resize)
        seen = resize(seen, (width, height), Image.Resampling.BILINEAR)
    return np.asarray(seen, np.uint8).reshape(height, width, channels).transpose(2, 0, 1)


def _reduced(picture: Image.Image, side: int) -> Image.Image:
    """A very large picture at a fraction of its size, not below `side`, with few copies of the whole on the way."""
    mode = "RGBA" if picture.has_transparency_data else "L" if picture.mode in GREY_MODES else "RGB"
    whole = picture if picture.mode in (mode, "LA") else picture.convert(mode)
    return whole.reduce(max(1, min(picture.size) // side))


@contextmanager
def _opened(source: Source) -> Iterator[Image.Image]:
    content, name = (source, str(source)) if isinstance(source, Path) else (BytesIO(source[0]), source[1])
    checked = reading(source, "a picture") if isinstance(source, Path) else decoding(name, "a picture")
    with checked, Image.open(content, formats=FORMATS) as picture:
        most = MOST_PIXELS * (2 if picture.format == "JPEG" else 1)
        if prod(picture.size) > most:
            size = "x".join(map(str, picture.size))
            raise UserError(f"{name} claims {size} pixels; give at most {most // 10**6} million")
        yield picture


def read_pictures(
    named: Sequence[tuple[Path, str]], classes: tuple[str, ...], shape: tuple[int, ...], *, fit: str
) -> Samples:
    """Pictures and their classes, decoded once: (N, C, H, W) in memory where there is room for it, else on disk."""
    decoded = in_parallel(partial(read_picture, shape=shape, fit=fit), [path for path, _ in named])
    place = {name: i for i, name in enumerate(classes)}
    labels = torch.tensor([place[name] for _, name in named])
    if 3 * len(named) * prod(shape) >= available_memory():  # splits copy
        return Samples(Stored.of(written(decoded, len(named), shape, np.uint8)), labels)
    pixels = np.empty((len(named), *shape), np.uint8)
    for i, found in enumerate(decoded):
        pixels[i] = found
    return Samples(torch.from_numpy(pixels), labels)


def in_parallel(work: Callable[[S], T], sources: Iterable[S]) -> Iterator[T]:
    """Results in order; threads will do, as the decoders let others run. Only a few results wait at a time."""
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with quiet_pillow(), ThreadPoolExecutor(workers) as pool:
        rest = iter(sources)
        while some := [*islice(rest, AHEAD * workers)]:
            yield from pool.map(work, some)
