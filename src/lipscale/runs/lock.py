"""One process at a time in a run folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lipscale.errors import UserError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder. The lock is on the folder itself, and the kernel drops it however the process ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process works on {folder}: wait until it has ended, or stop it first") from None
        except OSError:
            pass  # a file system without locks: better to train than to refuse
        yield
    finally:
        os.close(handle)
