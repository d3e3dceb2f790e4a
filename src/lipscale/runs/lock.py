"""One process at a time in a run folder."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lipscale.errors import UserError

LOCK = ".lock"


@contextmanager
def locked(path: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Hold a folder (by a file in it) or a file; the system drops the lock however the process ends."""
    lock = FileLock(path / LOCK if path.is_dir() else path)
    # a file system without locks, or a folder that may only be read: better to go on than to refuse
    with suppress(OSError, NotImplementedError):
        try:
            lock.acquire(timeout=wait)
        except Timeout:
            raise UserError(f"another process works on {path}: wait until it has ended, or stop it first") from None
    try:
        yield
    finally:
        lock.release()
