"""A worker: what a user's program sees of its job."""

import atexit
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import Refused
from .offer import Bring, Options
from .outcome import Outcome
from .place import OnStage, Place
from .resuming import Before

if TYPE_CHECKING:
    import torch

    from .host import Host
    from .loader import Loader

__all__ = ["Status", "Worker"]


@dataclass(frozen=True)
class Status:
    """Where a job stands, as one of its workers knows it."""

    worker: int
    members: tuple[int, ...]
    round: int
    epoch: int
    #: Between 0 and 1, the same on all members that exchange with each other.
    progress: float
    #: Steps that this worker's optimizer has made.
    updates: int
    #: Steps that a GradScaler has left out, because a gradient was not finite.
    skipped: int
    #: What the learning rate is multiplied by, for strategies that rescale it.
    factor: float
    #: Seconds in which this worker's loop has waited for samples to be read.
    waited: float

    def __str__(self) -> str:
        count = len(self.members)
        return f"epoch {self.epoch}, {self.progress:.0%} done, {count} worker{'s' if count != 1 else ''}"


class Worker:
    """A worker of a job. Made by `paceline.join`; a context manager that leaves the job at its end."""

    def __init__(
        self,
        place: Place,
        options: Options,
        *,
        batch_max: int | None,
        batch_fixed: int | None,
        checkpoints: dict[str, Any] | None,
        resume: str | None,
    ) -> None:
        self._place = place
        self._options = options
        self._piece = (batch_max, batch_fixed)
        self._saved = (checkpoints, resume)
        self._host: Host | None = None
        self._kept: dict[str, Any] = {}
        self._before = Before()
        self._outcome: Outcome | None = None
        self._is_closed = False
        if isinstance(place, OnStage):
            place.seat.close = self.close
        else:
            mine = weakref.ref(self)

            def leave() -> None:
                worker = mine()
                if worker is not None:
                    worker.close()

            atexit.register(leave)

    @property
    def device(self) -> "torch.device":
        """The device of this worker: its own GPU if there is one, else the CPU."""
        import os

        import torch

        if torch.cuda.is_available():
            local = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
            return torch.device("cuda", local % torch.cuda.device_count())
        return torch.device("cpu")

    def prepare(
        self,
        model: "torch.nn.Module",
        optimizer: "torch.optim.Optimizer",
        loader: "torch.utils.data.DataLoader[Any]",
        *,
        weight: Callable[[Any], Any] | None = None,
        order: Callable[[int], Any] | None = None,
    ) -> "tuple[torch.nn.Module, torch.optim.Optimizer, Loader]":
        """Connects model, optimizer and loader to the job; returns the same model and optimizer, and a loader of this worker's share.

        `weight(batch)` is what the loss of a batch is a mean over, if it is not over samples: the number of tokens, say. `order(epoch)`
        is the order of the samples' indices in an epoch, in place of a sampler; it must be the same on all workers.

        Waits until the job has begun.
        """
        from .host import Host

        if self._host is not None:
            raise Refused("worker.prepare was called before: a worker trains one model with one optimizer")
        host = Host(self._place, self._options, self._kept, model, optimizer, loader, self._piece, weight, order, self._before)
        checkpoints, resume = self._saved
        host.begin(Bring(host.offer(), host.initial(), checkpoints, resume))
        self._host = host
        return model, optimizer, host.loader

    def keep(self, **objects: Any) -> None:
        """Keeps objects with `state_dict()` and `load_state_dict()` (schedulers, scalers, averages) equal on all workers: their state
        travels to newcomers and into checkpoints. Name them the same everywhere."""
        for name, kept in objects.items():
            if not (hasattr(kept, "state_dict") and hasattr(kept, "load_state_dict")):
                raise Refused(f"worker.keep({name}=...): it has no state_dict() and load_state_dict()")
            self._kept[name] = kept
            if name in self._before.kept:
                kept.load_state_dict(self._before.kept[name])

    def state_dict(self) -> dict[str, Any]:
        """What a job needs to continue from a file of your own: which samples this worker's replica holds, the epoch, and the states of
        what `keep` keeps. Save it with the states of your model and of your optimizer, after `optimizer.step()`:

            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "worker": worker.state_dict()}, path)
        """
        return self._trained().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues a job where `state_dict` was called, in the middle of an epoch, on any number of workers. Call it on all workers,
        before `prepare`, and load model and optimizer yourself. What was learned after the file was written is learned again."""
        if self._host is not None:
            raise Refused("worker.load_state_dict after worker.prepare: the job has begun; call it before")
        if self._saved != (None, None):
            raise Refused("worker.load_state_dict with join(checkpoints=..., resume=...): continue from your own file, or from Paceline's")
        before = Before.read(state)
        for name in before.kept.keys() & self._kept.keys():
            self._kept[name].load_state_dict(before.kept[name])
        self._before = before

    def epochs(self) -> Iterator[int]:
        """The epochs of the job, from the one in which this worker joins to the last. All members end an epoch after the same update."""
        host = self._trained()
        host.look()
        while not host.is_over:
            epoch, batches = host.epoch, host.batches
            yield epoch
            if host.epoch == epoch and host.batches == batches and not host.is_over:
                raise Refused("the loop over worker.epochs() does not use the loader: iterate over the one that prepare returned")

    def loss(self, value: Any) -> None:
        """Reports the mean loss of the last batch, for journals and for noticing that training diverges. Optional."""
        self._trained().report_loss(value)

    def stop(self) -> None:
        """Asks that the job end after this round, on all workers."""
        self._place.stop()

    @property
    def id(self) -> int:
        """This worker's number, which no other worker of the job ever has."""
        return self._trained().line.worker

    @property
    def is_first(self) -> bool:
        """Whether this worker is the first member: the one that prints and evaluates."""
        host = self._trained()
        host.look()
        return bool(host.members) and host.members[0] == host.line.worker

    @property
    def progress(self) -> float:
        """How much of the job is done, between 0 and 1; the same on all members that exchange with each other. For schedules:
        `LambdaLR(optimizer, lambda _: f(worker.progress))`."""
        return self._host.progress if self._host is not None else 0.0

    def status(self) -> Status:
        """Where the job stands."""
        host = self._trained()
        host.look()
        members = tuple(host.members)
        counts = (host.updates, host.skipped, host.factor, host.samples.waited)
        return Status(host.line.worker, members, host.round, host.epoch, host.progress, *counts)

    @property
    def outcome(self) -> Outcome | None:
        """What the job ended with, if this worker was alone and the job is over."""
        from .replica import LocalReplica

        if self._host is not None and self._host.is_over and self._outcome is None:
            self._outcome = self._place.leave()
            if self._outcome is not None and isinstance(self._host.replica, LocalReplica):
                self._outcome.params = self._host.replica.whole()
        return self._outcome

    def close(self) -> None:
        """Leaves the job. If it is not over, the others continue; what this worker holds is computed again."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._host is not None:
            self._host.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _trained(self) -> "Host":
        if self._host is None:
            raise Refused("call worker.prepare(model, optimizer, loader) first")
        return self._host
