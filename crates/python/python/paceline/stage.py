"""Runs whose workers are threads of this process: simulated in virtual time, or in real time.

Each worker is a thread that runs the user's `main`. What a worker waits for is in the engine; it waits there without the
interpreter's lock. In a simulation one thread runs at a time, with generators of random numbers of its own.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from . import _paceline, chance
from .errors import PacelineError, Refused
from .offer import Bring
from .outcome import Outcome

__all__ = ["Gone", "Seat", "Stage", "here", "simulate", "threads"]

_here = threading.local()


def here() -> "Seat | None":
    """The worker whose thread this is, if it was started by `simulate` or `threads`."""
    return getattr(_here, "seat", None)


class Gone(BaseException):
    """Ends the thread of a worker that is lost, or whose run has failed. Not an error of the user's."""


class Seat:
    """One worker's thread."""

    def __init__(self, stage: "Stage", index: int) -> None:
        self.stage = stage
        self.index = index
        self.line: _paceline.Line | None = None
        self.returned: Any = None
        self.has_returned = False
        self.close: Callable[[], None] = lambda: None
        self.thread = threading.Thread(target=self._run, name=f"paceline-{index}", daemon=True)
        self._has_baton = False
        self._is_set_up = False

    def _run(self) -> None:
        _here.seat = self
        stage = self.stage
        self._take_baton()
        chance.restore(stage.chance)
        try:
            self.returned = stage.main()
            self.has_returned = True
        except Gone:
            pass
        except BaseException as error:
            stage.fail(error, self.index)
        finally:
            self.close()
            self._give_baton()

    def enter(self, bring: Bring) -> _paceline.Line:
        """Waits until all workers of the first view are here and the run has begun; returns this worker's line."""
        with self.away():
            line = self.stage.enter(self, bring)
        self._is_set_up = True
        if not self.stage.is_simulated:
            self._give_baton()
        return line

    @contextmanager
    def away(self) -> Iterator[None]:
        """Lets other workers run while this one waits."""
        if self._is_set_up and not self.stage.is_simulated:
            yield
            return
        kept = chance.save()
        self._give_baton()
        try:
            yield
        finally:
            self._take_baton()
            chance.restore(kept)

    def _take_baton(self) -> None:
        self.stage.baton.acquire()
        self._has_baton = True

    def _give_baton(self) -> None:
        if self._has_baton:
            self._has_baton = False
            self.stage.baton.release()


class Stage:
    """A run, and the threads of its workers."""

    def __init__(
        self,
        main: Callable[[], Any],
        workers: int,
        start: Callable[[str, _paceline.Flat], _paceline.Run],
        *,
        is_simulated: bool,
        strategy: str | None = None,
        speeds: Sequence[float] = (),
    ) -> None:
        if not isinstance(workers, int) or not 1 <= workers <= 1024:
            raise Refused(f"workers = {workers}: give 1 to 1024")
        self.main = main
        self.workers = workers
        self.start = start
        self.is_simulated = is_simulated
        self.strategy = strategy
        self.speeds = speeds
        self.baton = threading.Lock()
        self.chance = chance.save()
        self.run: _paceline.Run | None = None
        self.error: BaseException | None = None
        self._brought: dict[int, Bring] = {}
        self._changed = threading.Condition()
        self._seats = [Seat(self, index) for index in range(workers)]

    def play(self) -> Outcome:
        """Runs to the end."""
        torch = sys.modules.get("torch")
        threads = torch.get_num_threads() if torch is not None else None
        for seat in self._seats:
            seat.thread.start()
        try:
            self._direct()
        except BaseException as error:
            self.fail(error, None)
            raise
        finally:
            self._wait()
            if torch is not None and threads is not None:
                torch.set_num_threads(threads)
        if self.error is not None:
            raise self.error
        if self.run is None:
            raise PacelineError("main() has returned without training: call paceline.join() and worker.prepare() in it")
        outcome = Outcome.of(self.run.outcome())
        outcome.returned = {seat.index: seat.returned for seat in self._seats if seat.has_returned}
        return outcome

    def fail(self, error: BaseException, index: int | None) -> None:
        """Ends the run with this error."""
        with self._changed:
            if self.error is None:
                self.error = error
                if index is not None:
                    error.add_note(f"in worker {index}")
            if self.run is not None:
                self.run.stop()
            self._changed.notify_all()

    def enter(self, seat: Seat, bring: Bring) -> _paceline.Line:
        """See `Seat.enter`."""
        with self._changed:
            if self.run is None:
                self._brought[seat.index] = bring
                if len(self._brought) == self.workers:
                    self._begin()
                    self._changed.notify_all()
            else:
                self._brought[0].offer.check_same(bring.offer)
            self._changed.wait_for(lambda: seat.line is not None or self.error is not None)
            if seat.line is None:
                raise Gone
            return seat.line

    def _begin(self) -> None:
        first = self._brought[0]
        for index in range(1, self.workers):
            first.offer.check_same(self._brought[index].offer)
        self.run = self.start(json.dumps(first.spec(self.workers)), first.initial)

    def _direct(self) -> None:
        """Gives each worker that starts its line; workers that join later get a thread of their own."""
        while True:
            with self._changed:
                run = self.run
                are_alive = any(seat.thread.is_alive() for seat in self._seats)
                if run is None:
                    if not are_alive or self.error is not None:
                        return
                    self._changed.wait(0.05)
                    continue
            line = run.accept()
            if line is None:
                if run.has_ended() and not are_alive:
                    return
                if run.has_ended() and self.error is not None:
                    return
                if not are_alive and self.error is not None:
                    # A line that came when its worker had given up: nobody else would close it, and the engine waits for an answer.
                    for seat in self._seats:
                        if seat.line is not None:
                            seat.line.close()
                continue
            with self._changed:
                while len(self._seats) <= line.worker:
                    seat = Seat(self, len(self._seats))
                    self._seats.append(seat)
                seat = self._seats[line.worker]
                seat.line = line
                if seat.thread.ident is None and self.error is None:
                    seat.thread.start()
                self._changed.notify_all()

    def _wait(self) -> None:
        for seat in self._seats:
            if seat.thread.ident is not None:
                # A thread that computes cannot be ended from outside; it ends when it asks for its next batch.
                seat.thread.join(timeout=60.0)


def threads(
    main: Callable[[], Any],
    workers: int = 4,
    *,
    speeds: Sequence[float] = (),
    strategy: str | None = None,
    faults: str | dict[str, Any] | None = None,
    journal: str | None = None,
) -> Outcome:
    """Runs `main` on `workers` threads of this process, each of which is a worker, in real time.

    `main` is everything from `paceline.join()` on. `speeds` slows workers down: with `[1, 1, 2, 4]` the last one is four times as
    fast as the first. `strategy` replaces the one that `main` names. `faults` is a scenario (a name, the path of a file, or a
    dict) whose crashes, leaves and joins happen. Returns what the run ended with; `returned` has what each `main` returned.
    """
    text = None if faults is None else _text(faults, workers)
    slow = tuple(float(speed) for speed in speeds)
    if any(not speed > 0.0 for speed in slow):
        raise Refused(f"speeds = {list(speeds)}: give numbers above zero")

    def start(spec: str, initial: _paceline.Flat) -> _paceline.Run:
        return _paceline.threads(spec, initial, journal, text)

    return Stage(main, workers, start, is_simulated=False, strategy=strategy, speeds=slow).play()


def simulate(
    main: Callable[[], Any],
    scenario: str | dict[str, Any] = "uniform",
    workers: int = 4,
    *,
    strategies: Sequence[str] = (),
    journal: str | None = None,
) -> list[Outcome]:
    """Runs `main` for each of `workers` simulated workers, in virtual time, with real gradients.

    `main` is everything from `paceline.join()` on. `scenario` says how fast workers and network are, and what fails: a name that
    `paceline scenarios` lists, the path of a file, or a dict. One run for each of `strategies`, or one with the strategy that
    `main` names. The same seed gives the same journal. Prints a table if there are several.
    """
    text = _text(scenario, workers)

    def start(spec: str, initial: _paceline.Flat) -> _paceline.Run:
        return _paceline.simulate(spec, initial, text, journal)

    names: Sequence[str | None] = list(strategies) or [None]
    outcomes = [Stage(main, workers, start, is_simulated=True, strategy=name).play() for name in names]
    if len(outcomes) > 1:
        print(f"{'strategy':14}{'virtual seconds':>16}{'busy':>8}{'loss':>10}")
        for outcome in outcomes:
            loss = "" if outcome.loss is None else f"{outcome.loss:.4f}"
            print(f"{outcome.strategy:14}{outcome.seconds:>16.3f}{outcome.utilization:>8.0%}{loss:>10}")
    return outcomes


def _text(scenario: str | dict[str, Any], workers: int) -> str:
    return scenario if isinstance(scenario, str) else json.dumps({"workers": workers} | scenario)
