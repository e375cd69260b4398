"""A worker of a real cluster: it joins a coordinator that somebody has started, or that the first process of its launcher runs."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from . import _paceline, forks
from .errors import PacelineError, Refused
from .launchers import Launched
from .offer import Bring, Options
from .outcome import Outcome

__all__ = ["OnCluster"]

#: The batch of one worker, unless the job says otherwise.
_BATCH = 16
#: Supervisors may signal a process and its group: signals that arrive within this many seconds count as one request.
_ONE_REQUEST = 0.3


class OnCluster:
    """A process that is a worker of a cluster."""

    speeds: tuple[float, ...] = ()
    is_simulated = False
    needs_numbers = True

    def __init__(
        self,
        coordinator: str | None,
        token: str | None,
        *,
        insecure: bool = False,
        launched: Launched | None = None,
        journal: str | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._token = token
        self._insecure = insecure
        self._launched = launched
        self._journal = journal
        self._member: _paceline.Member | None = None
        self._office: _paceline.Office | None = None
        self._ended: Outcome | None = None
        #: The coordinator's job; `None` if a launcher's first process has not begun it.
        self.job: dict[str, Any] | None = None
        if coordinator is not None and token is not None:
            self.job = json.loads(_paceline.look(coordinator, token, insecure))

    def options(self, given: dict[str, Any]) -> Options:
        """What the coordinator's job says; arguments of `join` that differ are refused."""
        assert self.job is not None
        job = {name: self.job[name] for name in ("strategy", "epochs", "batch_total", "seed", "choices", "batch_reference")}
        for name, value in given.items():
            if value is not None and value != job[name]:
                raise Refused(
                    f"{name} = {value!r}, but the coordinator's job has {job[name]!r}: leave it out of paceline.join, or start the "
                    "coordinator with it"
                )
        return Options(**job)

    def enter(self, bring: Bring) -> _paceline.Line:
        """See `Place`."""
        if self._launched is not None:
            self._launch(self._launched, bring)
        assert self._coordinator is not None and self._token is not None and self.job is not None
        self._check_batch(bring, self.job)
        common = json.dumps([bring.offer.frozen, [t["dtype"] for t in bring.offer.tensors], bring.offer.done])
        number = int.from_bytes(hashlib.blake2b(common.encode(), digest_size=8).digest(), "little")
        spec = json.dumps(bring.spec(1))
        self._member = _paceline.member(spec, bring.initial, self._coordinator, self._token, self._insecure, number)
        forks.watch(self._member.addresses)
        self._listen(self._member)
        try:
            line = self._next_line(self._member)
        except PacelineError as error:
            if "differ" in str(error):
                told = str(error)
                if "other contents" in told:
                    told = (
                        "frozen parameters, types of parameters, or the state of worker.load_state_dict differ from those of the job's "
                        "first worker: load the same files everywhere"
                    )
                raise Refused(told) from None
            raise
        if line is None:
            raise PacelineError("the job is over")
        return line

    def away(self) -> AbstractContextManager[None]:
        """See `Place`."""
        return nullcontext()

    def renew(self, line: _paceline.Line) -> _paceline.Line | None:
        """See `Place`: a worker that was put out joins again, under a new number."""
        assert self._member is not None
        return self._next_line(self._member)

    def stop(self) -> None:
        """See `Place`."""
        if self._office is None:
            raise Refused("worker.stop: on a cluster the coordinator is asked to stop: press Ctrl-C there, or leave with worker.close()")
        self._office.stop()

    def leave(self) -> Outcome | None:
        """See `Place`."""
        return self._ended

    def _next_line(self, member: _paceline.Member) -> _paceline.Line | None:
        while True:
            line = member.accept()
            if line is not None:
                return line
            if member.has_ended():
                member.outcome()
                if self._office is not None:
                    self._ended = Outcome.of(self._office.outcome())
                if self._launched is not None:
                    self._launched.clean_up()
                return None

    def _launch(self, launched: Launched, bring: Bring) -> None:
        """The first process of a launcher runs the coordinator; the others find it."""
        if launched.rank == 0:
            state = launched.make_state()
            spec = json.dumps(bring.spec(launched.size))
            self._office = _paceline.coordinate(spec, str(state), launched.listen, launched.patience, self._journal)
            launched.tell(self._office.port)
        self._coordinator, self._token = launched.find()
        job: dict[str, Any] = json.loads(_paceline.look(self._coordinator, self._token, False))
        self.job = job
        options = bring.offer.options
        given = {name: getattr(options, name) for name in ("strategy", "epochs", "batch_total", "seed", "choices")}
        for name, value in given.items():
            if value != job[name]:
                raise Refused(f"paceline.join: {name} is {value!r} here and {job[name]!r} at the first worker: give the same")

    def _check_batch(self, bring: Bring, job: dict[str, Any]) -> None:
        if job["batch_total"] is not None:
            return
        batch = job["batch"] or _BATCH
        if bring.offer.batch != batch:
            raise Refused(
                f"the loader's batch_size is {bring.offer.batch}, but the coordinator's job has a batch of {batch}: start the coordinator with "
                f"--batch {bring.offer.batch}, or give the loader batch_size={batch}"
            )

    def _listen(self, member: _paceline.Member) -> None:
        """SIGTERM leaves in good order, and ends the process when it comes again; SIGUSR1 asks for a checkpoint; unless the user's
        program has handlers of its own."""
        if threading.current_thread() is not threading.main_thread():
            return
        asked: list[float] = []

        def leave(number: int, _frame: Any) -> None:
            if not asked:
                asked.append(time.monotonic())
                # Not by `print`: the signal may have come in the middle of another one.
                os.write(2, b"paceline: leaving at the next boundary, unless this is the last worker; another SIGTERM ends it at once\n")
                member.leave()
            elif time.monotonic() > asked[0] + _ONE_REQUEST:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        def save(_number: int, _frame: Any) -> None:
            member.save()

        for number, act in ((signal.SIGTERM, leave), (signal.SIGUSR1, save)):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, act)

    def linger(self, seconds: float) -> None:
        """Waits for this worker's last words, but not for ever."""
        until = time.monotonic() + seconds
        while self._member is not None and not self._member.has_ended() and time.monotonic() < until:
            time.sleep(0.01)
