"""The errors that a user can mend; the command line prints them as one line and exits with 2."""


class UserError(ValueError):
    """Something the user gave is wrong; the message names it and the way out."""

    def __init__(self, message: str) -> None:
        # names come from files: a line break or a terminal's control codes in one must not reach the screen
        super().__init__("".join(c if c.isprintable() else " " for c in message))


class UnusableError(UserError):
    """What a run has stored cannot be used: it is damaged, or its data are no longer what they were."""


class UnwritableError(UserError):
    """A file could not be written: a full disk, a folder that may not be written to."""


class StoppedError(RuntimeError):
    """A training was asked to stop; what it has done is saved and can be continued."""


class DivergedError(RuntimeError):
    """Training left the realm of finite numbers; the message names the epoch and the last good checkpoint."""


class UnsoundError(RuntimeError):
    """A certificate was broken: never the user's mistake, always ours; the command line exits with 1."""


class LostProcessError(RuntimeError):
    """A process that trains together with this one is gone; the last checkpoint is intact."""
