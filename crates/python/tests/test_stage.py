"""Workers that are threads of this process, and how their runs end. Needs no torch."""

from typing import Any

import pytest
from paceline.stage import Stage, here


class Line:
    """The line of a worker that is not there any more."""

    worker = 0
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Run:
    """An engine that gives a worker its line when the worker has failed, and ends when that is closed."""

    def __init__(self) -> None:
        self.line, self.asked, self.stage = Line(), 0, None

    def accept(self) -> Any:
        self.asked += 1
        assert self.asked < 1000, "it waits for an engine that waits for a worker"
        assert self.stage is not None
        self.stage._seats[0].thread.join()
        return self.line if self.asked == 1 else None

    def has_ended(self) -> bool:
        return self.line.is_closed

    def stop(self) -> None:
        """It only notices between rounds."""


def test_a_worker_that_fails_before_it_has_its_line_ends_the_run() -> None:
    run = Run()

    def main() -> None:
        seat = here()
        assert seat is not None
        run.stage = seat.stage  # type: ignore[assignment]
        seat.stage.run = run  # type: ignore[assignment]
        raise ValueError("no")

    stage = Stage(main, 1, lambda spec, initial: None, is_simulated=True)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="no"):
        stage.play()
    assert run.line.is_closed
