"""The errors that a user can mend; the command line prints them as one line and exits with 2."""


class UserError(ValueError):
    """Something the user gave is wrong; the message names it and the way out."""


class UnwritableError(UserError):
    """A file could not be written: a full disk, a folder that may not be written to."""


class StoppedError(RuntimeError):
    """A training was asked to stop; what it has done is saved and can be continued."""


class DivergedError(RuntimeError):
    """Training left the realm of finite numbers; the message names the epoch and the last good checkpoint."""
