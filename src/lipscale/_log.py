"""The package's log, silenced for a while."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_only() -> Iterator[None]:
    """Within, only errors are logged: the process may be somebody else's, so it is as it was afterwards."""
    log = logging.getLogger("lipscale")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
