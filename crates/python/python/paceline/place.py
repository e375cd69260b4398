"""Where a worker is: a thread of a stage, or alone in its process. Members of a cluster are in `cluster`."""

import json
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from . import _paceline
from .errors import Lost
from .offer import Bring
from .outcome import Outcome
from .stage import Gone, Seat

__all__ = ["Alone", "OnStage", "Place"]


class Place(Protocol):
    """Where a worker is."""

    #: Emulated speeds of the workers, by their numbers.
    speeds: tuple[float, ...]
    #: Whether time is virtual, so that nothing may depend on what runs at the same time.
    is_simulated: bool
    #: Whether gradients and parameters must reach the engine: other workers need them, or checkpoints do.
    needs_numbers: bool

    def enter(self, bring: Bring) -> _paceline.Line:
        """Begins the job, or joins it; returns the worker's line."""
        ...

    def away(self) -> AbstractContextManager[None]:
        """Around waits for the engine."""
        ...

    def renew(self, line: _paceline.Line) -> _paceline.Line | None:
        """After a line has ended: the line of the worker's next life, or `None` if the job is over; raises if the worker is lost."""
        ...

    def stop(self) -> None:
        """Asks that the job end after this round."""
        ...

    def leave(self) -> Outcome | None:
        """After the job: what it ended with, if that is known here."""
        ...


class OnStage:
    """A thread of `simulate` or `threads`."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.speeds = tuple(seat.stage.speeds)
        self.is_simulated = seat.stage.is_simulated
        self.needs_numbers = True

    def enter(self, bring: Bring) -> _paceline.Line:
        """See `Place`."""
        return self.seat.enter(bring)

    def away(self) -> AbstractContextManager[None]:
        """See `Place`."""
        return self.seat.away()

    def renew(self, line: _paceline.Line) -> _paceline.Line | None:
        """See `Place`."""
        with self.away():
            fate = line.fate()
        if fate == "lost":
            raise Gone
        return None

    def stop(self) -> None:
        """See `Place`."""
        if self.seat.stage.run is not None:
            self.seat.stage.run.stop()

    def leave(self) -> Outcome | None:
        """See `Place`."""
        return None


class Alone:
    """The only worker of its job: no socket, no other process."""

    speeds: tuple[float, ...] = ()
    is_simulated = False

    def __init__(self, journal: str | None, *, needs_numbers: bool) -> None:
        self.needs_numbers = needs_numbers
        self.journal = journal
        self.run: _paceline.Run | None = None

    def enter(self, bring: Bring) -> _paceline.Line:
        """See `Place`."""
        self.run = _paceline.threads(json.dumps(bring.spec(1)), bring.initial, self.journal, None)
        while True:
            line = self.run.accept()
            if line is not None:
                return line
            if self.run.has_ended():
                self.run.outcome()

    def away(self) -> AbstractContextManager[None]:
        """See `Place`."""
        return nullcontext()

    def renew(self, line: _paceline.Line) -> _paceline.Line | None:
        """See `Place`."""
        if line.fate() == "lost":
            raise Lost("this worker counts as lost")
        return None

    def stop(self) -> None:
        """See `Place`."""
        if self.run is not None:
            self.run.stop()

    def leave(self) -> Outcome | None:
        """See `Place`."""
        return None if self.run is None else Outcome.of(self.run.outcome())
