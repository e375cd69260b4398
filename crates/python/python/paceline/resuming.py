"""A job that continues from the user's own file: which samples are learned, and where the others are.

The engine does not know of the samples that were learned before: its positions count those that are left, in their order.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from .errors import Refused

__all__ = ["Before", "Rest", "joined"]

_FORMAT = 1
Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class Before:
    """What `Worker.state_dict` has said about a job."""

    #: The positions of the job that are learned: intervals in order, with gaps between them.
    done: Spans = field(default_factory=list)
    per_epoch: int = 0
    fixed: int | None = None
    seed: int = 1
    epoch: int = 0
    updates: int = 0
    skipped: int = 0
    #: The states of the objects that were given to `Worker.keep`.
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """How many positions are learned."""
        return sum(end - start for start, end in self.done)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, texts, lists and tensors: `torch.load` reads them with `weights_only=True`."""
        return {
            "format": _FORMAT,
            "done": [list(span) for span in self.done],
            "samples": self.per_epoch,
            "batch_fixed": self.fixed,
            "seed": self.seed,
            "epoch": self.epoch,
            "updates": self.updates,
            "skipped": self.skipped,
            "kept": self.kept,
        }

    @staticmethod
    def read(state: Any) -> "Before":
        """The same, from what the user has loaded."""
        if not isinstance(state, dict) or not {"format", "done", "samples", "kept"} <= set(state):
            raise Refused("worker.load_state_dict: this is no state of a worker: give what worker.state_dict() returned")
        if state["format"] != _FORMAT:
            raise Refused(f"worker.load_state_dict: the state has format {state['format']!r}, and this version of Paceline reads {_FORMAT}")
        try:
            done = [(int(start), int(end)) for start, end in state["done"]]
            fixed = None if state["batch_fixed"] is None else int(state["batch_fixed"])
            counts = {name: int(state[name]) for name in ("seed", "epoch", "updates", "skipped")}
            before = Before(done, int(state["samples"]), fixed, kept=dict(state["kept"]), **counts)
        except (KeyError, TypeError, ValueError) as error:
            raise Refused(f"worker.load_state_dict: the state of the worker is damaged: {error!r}") from error
        edges = [edge for span in before.done for edge in span]
        if edges != sorted(set(edges)) or (edges and edges[0] < 0) or before.per_epoch < 1:
            raise Refused("worker.load_state_dict: the state of the worker is damaged: its intervals of samples do not follow each other")
        return before

    def check(self, per_epoch: int, fixed: int | None, seed: int, total: int) -> None:
        """Refuses to continue with other data, another order, or without samples that are left."""
        for name, then, now in (
            ("samples in an epoch", self.per_epoch, per_epoch),
            ("batch_fixed", self.fixed, fixed),
            ("seed", self.seed, seed),
        ):
            if then != now:
                raise Refused(f"worker.load_state_dict: {name} was {then} and is {now} now: continue with the same")
        if self.done and self.done[-1][1] > total or self.samples >= total:
            epochs = self.samples / per_epoch
            raise Refused(f"worker.load_state_dict: {epochs:g} epochs are learned, and the job has {total / per_epoch:g}: give join(epochs=...) more")


class Rest:
    """The positions of a job that were not learned before, counted from zero."""

    def __init__(self, done: Spans, total: int) -> None:
        starts = [0, *(end for _, end in done)]
        ends = [*(start for start, _ in done), total]
        gaps = [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]
        self._starts = [start for start, _ in gaps]
        self._before = [0, *accumulate(end - start for start, end in gaps)]

    def at(self, position: int) -> int:
        """The position in the whole job."""
        gap = min(bisect_right(self._before, position) - 1, len(self._starts) - 1)
        return self._starts[gap] + position - self._before[gap]

    def spans(self, spans: Iterable[tuple[int, int]]) -> Spans:
        """Intervals in the whole job."""
        found: Spans = []
        for start, end in spans:
            while start < end:
                gap = bisect_right(self._before, start) - 1
                stop = min(end, self._before[gap + 1]) if gap + 1 < len(self._before) else end
                found.append((self.at(start), self.at(start) + stop - start))
                start = stop
        return found


def joined(*parts: Iterable[tuple[int, int]]) -> Spans:
    """All intervals, in order, without overlaps."""
    found: Spans = []
    for start, end in sorted(span for part in parts for span in part):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
