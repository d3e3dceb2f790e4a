"""The errors that a user can mend; the command line prints them as one line and exits with 2."""


class UserError(ValueError):
    """Something the user gave is wrong; the message names it and the way out."""


class DivergedError(RuntimeError):
    """Training left the realm of finite numbers; the message names the epoch and the last good checkpoint."""


class UnsoundError(RuntimeError):
    """A certificate was broken: never the user's mistake, always ours; the command line exits with 1."""
