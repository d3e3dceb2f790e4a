"""Arrays in several .npz files: their inputs stay where they are, and are read once at the start, to be checked."""

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipscale.data.arrays import Header, as_labels, input_shape, load_arrays, read_header, require_pixels
from lipscale.data.columns import Columns
from lipscale.data.dataset import Samples
from lipscale.data.memory import reading, rows_at_once
from lipscale.data.stored import Place, Rows, Stored, scratch
from lipscale.errors import UserError

MEMBER = "x.npy"


@dataclass(frozen=True)
class Shard:
    """One of the files."""

    path: Path
    labels: Tensor
    names: np.ndarray | None  # of the classes
    header: Header  # of x
    shape: tuple[int, ...]  # of one input
    start: int | None  # the byte at which x begins in the file; none where it is compressed


def read_npz_shards(paths: Sequence[Path]) -> tuple[Samples, np.ndarray | None]:
    """Samples in the order of the files, and what they call the classes; all have x and y of one shape and kind."""
    shards = [_opened(path) for path in paths]
    _require_alike(shards)
    labels = torch.cat([shard.labels for shard in shards])
    names = next((shard.names for shard in shards if shard.names is not None), None)
    base = _as_columns(shards) if len(shards[0].shape) == 1 else _as_rows(shards)
    return Samples(Stored.of(base), labels), names


def _opened(path: Path) -> Shard:
    """A file's labels, and where its inputs are."""
    arrays = load_arrays(path, "y", "classes")
    with reading(path, "an .npz file of plain arrays"), zipfile.ZipFile(path) as archive:
        members = archive.namelist()
        if MEMBER not in members or "y" not in arrays:
            raise UserError(f"{path}: expected x and y, got {', '.join(Path(name).stem for name in members[:9])}")
        if "x_test.npy" in members:
            raise UserError(f"{path} has a test part of its own (x_test): give that as files of its own, `test_data`")
        with archive.open(MEMBER) as file:
            header = read_header(file, f"x in {path}")
            skipped = file.tell()
        plain = archive.getinfo(MEMBER).compress_type == zipfile.ZIP_STORED
        start = _beginning(path, archive.getinfo(MEMBER).header_offset) + skipped if plain else None
    labels = as_labels(arrays["y"], path)
    shape = input_shape(header.shape, header.kind, path)
    if len(labels) != header.shape[0]:
        raise UserError(f"{path} has {header.shape[0]} inputs but {len(labels)} labels")
    if len(labels) == 0:
        raise UserError(f"{path} is empty: remove it")
    if int(labels.min()) < 0:
        raise UserError(f"{path}: label {int(labels.min())} of sample {int(labels.argmin())} is negative")
    if header.fortran and header.shape[0] > 1:
        raise UserError(f"{path}: x is stored column by column; save np.ascontiguousarray(x)")
    return Shard(path, labels, arrays.get("classes"), header, shape, start)


def _beginning(path: Path, offset: int) -> int:
    """Where the content of a zip archive's member begins: behind its local header, whose end has two lengths."""
    with path.open("rb") as file:
        file.seek(offset)
        local = file.read(30)
    return offset + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")


def _require_alike(shards: Sequence[Shard]) -> None:
    """All files must hold the same kind of samples."""
    first = shards[0]
    names, source = next(((shard.names, shard.path) for shard in shards if shard.names is not None), (None, first.path))
    for shard in shards:
        ours, theirs = ((part.header.kind, part.shape) for part in (shard, first))
        if ours != theirs:
            one, other = (f"{kind} of shape {shape}" for kind, shape in (ours, theirs))
            raise UserError(f"{shard.path} has inputs of {one}, and {first.path.name} has {other}: give them alike")
        if shard.names is not None and shard.names.tolist() != (names if names is None else names.tolist()):
            raise UserError(f"{shard.path} has other classes than {source.name}")


def _as_rows(shards: Sequence[Shard]) -> Rows:
    """Images where they are; those that are compressed are unpacked to a file without a name."""
    places = []
    for shard in shards:
        unpacked = scratch(shard.header.size) if shard.start is None else None
        for first, chunk in _chunks(shard):
            _require_finite(chunk, shard.path, first)
            require_pixels(chunk, shard.path)
            if unpacked is not None:
                unpacked.write(chunk.data)
        file = unpacked or shard.path.open("rb", buffering=0)
        places.append(Place(shard.path, file, shard.start or 0, len(shard.labels)))
    return Rows(tuple(places), shards[0].shape, shards[0].header.kind)


def _as_columns(shards: Sequence[Shard]) -> Columns:
    """A table, turned on its side."""
    table, done = Columns.empty(sum(len(shard.labels) for shard in shards), *shards[0].shape), 0
    for shard in shards:
        for first, chunk in _chunks(shard):
            _require_finite(chunk, shard.path, first)
            for column, values in enumerate(chunk.T):
                table.write(column, values, done + first)
        done += len(shard.labels)
    return table


def _chunks(shard: Shard) -> Iterator[tuple[int, np.ndarray]]:
    """Inputs, some megabytes at a time, each time with the number of the first; the archive checks its own sum."""
    count, kind = len(shard.labels), shard.header.kind
    row = shard.header.size // count
    size = rows_at_once(8 * row // kind.itemsize)
    with reading(shard.path, "an .npz file"), zipfile.ZipFile(shard.path) as archive, archive.open(MEMBER) as file:
        read_header(file, str(shard.path))
        for first in range(0, count, size):
            raw = file.read(min(size, count - first) * row)
            if len(raw) != min(size, count - first) * row:
                raise UserError(f"x in {shard.path} is shorter than its header says; get the file again")
            yield first, np.frombuffer(raw, kind).reshape(-1, *shard.shape)
        if file.read(1):
            raise UserError(f"x in {shard.path} is longer than its header says; get the file again")


def _require_finite(chunk: np.ndarray, path: Path, first: int) -> None:
    if chunk.dtype.kind == "f" and not np.isfinite(chunk).all():
        index = first + int((~np.isfinite(chunk)).reshape(len(chunk), -1).any(1).argmax())
        raise UserError(f"{path}: sample {index} holds NaN or infinite values; remove or repair it")
