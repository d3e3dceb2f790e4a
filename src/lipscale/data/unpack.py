"""Archives, unpacked so that nothing leaves the target and nothing floods it."""

import gzip
import io
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from lipscale.errors import UserError

PREFIX = ".unpacking-"
DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, IndexError),
    *(NotImplementedError, RuntimeError, OverflowError, MemoryError),
)


@dataclass(frozen=True)
class Limits:
    """How much an archive may hold."""

    members: int
    size: int  # bytes, unpacked


def unpack(archive: Path, target: Path, folder: str, limits: Limits) -> Path:
    """Unpack the archive's one folder to TARGET/FOLDER, all of it or nothing.

    Only plain files and folders come out, only below FOLDER, each name once, within the limits.
    """
    for left_over in target.glob(f"{PREFIX}*"):  # of a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    if (target / folder).exists():
        raise UserError(f"{target / folder} exists already; move it away first")
    room = Path(tempfile.mkdtemp(prefix=PREFIX, dir=target))
    try:
        _unpack_into(archive, room, folder, limits)
        if not (room / folder).is_dir():
            raise UserError(f"{archive} holds no folder {folder}")
        os.replace(room / folder, target / folder)
    finally:
        shutil.rmtree(room, ignore_errors=True)
    return target / folder


def _unpack_into(archive: Path, room: Path, folder: str, limits: Limits) -> None:
    seen: set[PurePosixPath] = set()
    left = limits.size
    try:
        members = (
            _zip_members(archive)
            if archive.name.removesuffix(".part").endswith(".zip")
            else _tar_members(archive, left)
        )
        for name, is_folder, content in members:
            path = _checked(name, archive, folder)
            if len(seen) >= limits.members:
                raise UserError(f"{archive} holds more than the {limits.members} files that were expected")
            if path in seen and not is_folder:
                raise UserError(f"{archive} holds {name!r} twice")
            seen.add(path)
            if is_folder:
                (room / path).mkdir(parents=True, exist_ok=True)
                continue
            (room / path).parent.mkdir(parents=True, exist_ok=True)
            with (room / path).open("xb") as out:
                while block := content.read(1 << 18):
                    left -= len(block)
                    if left < 0:
                        raise UserError(f"{archive} unpacks to more than the {limits.size} bytes that were expected")
                    out.write(block)
    except UserError:
        raise
    except DAMAGED as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(f"cannot unpack {archive} ({reason})") from error


def _checked(name: str, archive: Path, folder: str) -> PurePosixPath:
    path = PurePosixPath(name)
    inside = path.parts[:1] == (folder,) and ".." not in path.parts
    if not inside or "\0" in name or "\\" in name:
        raise UserError(f"{archive} holds {name[:80]!r}, which is not below {folder}/; it was not unpacked")
    return path


def _tar_members(archive: Path, most: int) -> Iterator[tuple[str, bool, IO[bytes]]]:
    with gzip.open(archive) as raw:
        # streamed, so that a header that claims gigabytes hits the limit and not the memory
        limited: Any = io.BufferedReader(_Limited(raw, most + (most >> 2) + (1 << 20), archive))
        with tarfile.open(fileobj=limited, mode="r|") as tar:
            for member in tar:
                if not (member.isfile() or member.isdir()) or member.issparse():
                    raise UserError(f"{archive}: {member.name[:80]!r} is neither a plain file nor a folder")
                content = tar.extractfile(member)
                yield member.name, member.isdir(), content or io.BytesIO()


def _zip_members(archive: Path) -> Iterator[tuple[str, bool, IO[bytes]]]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise UserError(f"{archive}: {info.filename[:80]!r} is neither a plain file nor a folder")
            if info.is_dir():
                yield info.filename, True, io.BytesIO()
            else:
                with file.open(info) as content:
                    yield info.filename, False, content


class _Limited(io.RawIOBase):
    """A stream that ends in an error once it has given too much."""

    def __init__(self, raw: Any, most: int, archive: Path) -> None:
        self.raw, self.left, self.archive = raw, most, archive

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self.raw.read(len(buffer))
        self.left -= len(block)
        if self.left < 0:
            raise UserError(f"{self.archive} unpacks to more than was expected")
        buffer[: len(block)] = block
        return len(block)
