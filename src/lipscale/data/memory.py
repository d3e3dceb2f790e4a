"""Sizes before memory: how much there is and whether a file can be read, asked before anything is taken."""

import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lipscale.errors import UserError

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
AT_ONCE = 1 << 24  # bytes


def available_memory() -> int:
    """Bytes that this process may still take: what the machine has left, within the limit of its container."""
    free = 1 << 62
    with suppress(OSError, ValueError):  # no container, or none with a limit
        limit, used = (int((CGROUP / name).read_text(encoding="utf-8")) for name in ("memory.max", "memory.current"))
        free = max(0, limit - used)
    with suppress(OSError, ValueError, KeyError):  # not Linux: there the operating system will have to say no
        lines = dict(line.split(":") for line in MEMINFO.read_text(encoding="utf-8").splitlines())
        free = min(free, 1024 * int(lines["MemAvailable"].split()[0]))
    return free


def require_memory(size: int, what: str, way_out: str = "give less data") -> None:
    """Refuse what would not fit, before anything is allocated."""
    free = available_memory()
    if size > free:
        raise UserError(f"{what} would take {gigabytes(size)} of memory and {gigabytes(free)} are free: {way_out}")


@contextmanager
def reading(path: Path, what: str, *, most: int | None = None) -> Iterator[int]:
    """In here a regular file of at most `most` bytes is read; whatever damage raises becomes one error with its name.

    A pipe or a device, which may never end, is refused.
    """
    try:
        with decoding(str(path), what):
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise UserError(f"{path} {'is a folder' if stat.S_ISDIR(found.st_mode) else 'is no regular file'}")
            if most is not None and found.st_size > most:
                raise UserError(f"{path} is larger than the {most // 10**6} MB that were expected")
            yield found.st_size
    except FileNotFoundError as error:
        raise UserError(f"{error.filename or path} does not exist") from None


@contextmanager
def decoding(name: str, what: str) -> Iterator[None]:
    """In here something with this name is decoded; whatever damage raises becomes one error with the name."""
    try:
        yield
    except (UserError, FileNotFoundError):
        raise
    except Exception as error:
        said = re.sub(r" <\S+ object at 0x[0-9a-f]+>", "", f"{type(error).__name__}: {error}")
        reason = " ".join(said.split()).replace(name, "it")[:200]
        raise UserError(f"cannot read {name} as {what} ({reason}); mend it or get it again") from error


def rows_at_once(size: int) -> int:
    """How many rows of so many bytes to have in memory where all of them are gone through: some megabytes."""
    return max(1, min(4096, AT_ONCE // max(1, size)))


def gigabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1e9:.2g} GB" if size < 1e13 else "more than 10,000 GB"
