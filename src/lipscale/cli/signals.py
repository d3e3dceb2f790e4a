"""SIGINT and SIGTERM: the first asks politely, the second takes effect at once."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NAMES = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether a signal has come, or torchrun is gone that started this process; call it to ask."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.parent = os.getppid()

    def __call__(self) -> bool:
        """Whether to stop."""
        if self.signal is None and _under_torchrun() and os.getppid() != self.parent:
            self.signal = signal.SIGTERM  # one that is killed can tell nobody, and would leave its processes behind
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """By the convention of shells, 128 + the signal."""
        return 128 + (self.signal or signal.SIGINT)


class Stopped(Exception):
    """A command was stopped: what to tell, and with which code to end."""

    def __init__(self, told: str, exit_code: int) -> None:
        super().__init__(told)
        self.exit_code = exit_code


@contextmanager
def at_once(request: StopRequest) -> Iterator[None]:
    """Within, a Ctrl-C is noted before it interrupts, for those who would take the interruption for a fault."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        request.signal = number
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def polite_stop(request: StopRequest, tell: Callable[[str], None]) -> Iterator[None]:
    """Within, the first signal only sets the request, for a training to finish its batch and save."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        request.signal = number
        if _under_torchrun():  # it passes each one on, again, and kills after half a minute
            tell("Stopping after this batch.")
            return
        for name in NAMES:
            signal.signal(name, before[name])  # a second one is not held back
        tell("Stopping after this batch; once more to stop at once.")

    before = {name: signal.signal(name, on_signal) for name in NAMES}
    try:
        yield
    finally:
        for name in NAMES:
            signal.signal(name, before[name])


def _under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ  # as in `_processes`, which is not imported here: it imports torch
