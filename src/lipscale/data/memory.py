"""Sizes before memory: how much there is and whether a file can be read, asked before anything is taken."""

import os
import stat
from pathlib import Path

from lipscale.errors import UserError

CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that this process may still take: what the machine has left, within the limit of its container."""
    free = _container_memory()
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return min(free, 1024 * int(line.split()[1]))
        return min(free, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError, AttributeError):  # not Linux: there the operating system will have to say no
        return free


def _container_memory() -> int:
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return max(0, int(limit) - int(used))
    except (OSError, ValueError):  # no container, or none with a limit
        return 1 << 62


def require_memory(size: int, what: str) -> None:
    """Refuse what would not fit, before anything is allocated."""
    free = available_memory()
    if size > free:
        raise UserError(f"{what} would take {gigabytes(size)} of memory and {gigabytes(free)} are free: give less data")


def require_file(path: Path, *, most: int | None = None) -> int:
    """The size of a regular file of at most `most` bytes; a pipe or a device, which may never end, is refused."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "does not exist" if missing else f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise UserError(f"{path} {reason}") from error
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path} {'is a folder' if stat.S_ISDIR(found.st_mode) else 'is no regular file'}")
    if most is not None and found.st_size > most:
        raise UserError(f"{path} is larger than the {most // 10**6} MB that were expected")
    return found.st_size


def gigabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1e9:.2g} GB" if size < 1e13 else "more than 10,000 GB"
