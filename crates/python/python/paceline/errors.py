"""The exceptions of this package."""

__all__ = ["Lost", "PacelineError", "Refused"]


class PacelineError(Exception):
    """A run failed."""


class Refused(PacelineError, ValueError):
    """A request that cannot be granted; the message says what to change."""


class Lost(PacelineError):
    """This worker counts as lost: the others continue without it."""
