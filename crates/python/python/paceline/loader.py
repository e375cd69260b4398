"""This worker's share of the data, read with the user's own data loader."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import data

from . import _paceline
from .errors import Refused
from .prefetch import Prefetcher
from .resuming import Rest

if TYPE_CHECKING:
    from .host import Host

__all__ = ["Loader", "Piece", "Pieces", "Samples", "Step"]


class Piece:
    """Samples that go through the model together."""

    def __init__(self, samples: int, batch: Any) -> None:
        self.samples = samples
        self.batch = batch


class Samples:
    """Reads samples by their positions in the job."""

    def __init__(
        self,
        loader: "data.DataLoader[Any]",
        seed: int,
        fixed: int | None,
        order: Callable[[int], Any] | None,
        *,
        is_simulated: bool,
    ) -> None:
        if not isinstance(loader, data.DataLoader):
            raise Refused(f"{type(loader).__name__} is no torch.utils.data.DataLoader: give worker.prepare the loader of your data set")
        if isinstance(loader.dataset, data.IterableDataset):
            raise Refused(
                "an iterable data set has no positions, so that nobody can say which samples were learned: use a data set with "
                "len() and [index]"
            )
        if loader.batch_size is None:
            raise Refused(
                "the loader has a batch sampler of its own, or no batches: Paceline decides how many samples a batch has; "
                "give batch_size=, and an order of samples to worker.prepare(order=...)"
            )
        self.dataset = loader.dataset
        self.collate = loader.collate_fn
        self.pins = loader.pin_memory and torch.cuda.is_available()
        self.fixed = fixed
        count = len(self.dataset)  # type: ignore[arg-type]
        self._order = order
        self._orders: dict[int, list[int]] = {}
        shuffled = _is_shuffled(loader.sampler, count, order)
        self._indices = count if order is None else len(self._epoch_order(0))
        if self._indices == 0:
            raise Refused("the data set has no samples: give it at least one")
        if fixed is None:
            self.per_epoch, self.batch = self._indices, loader.batch_size
        else:
            # A position is a whole piece; what is left of an epoch is too small for one, and differs from epoch to epoch.
            if loader.batch_size % fixed != 0:
                raise Refused(f"batch_fixed = {fixed} does not divide the loader's batch_size = {loader.batch_size}")
            self.per_epoch, self.batch = self._indices // fixed, loader.batch_size // fixed
            if self.per_epoch == 0:
                raise Refused(f"batch_fixed = {fixed} is more than the data set's {self._indices} samples")
        self._places = _paceline.Order(seed, self._indices, shuffled and order is None)
        self._prefetcher: Prefetcher | None = None
        if loader.num_workers > 0 and not is_simulated:
            self._prefetcher = Prefetcher(loader, self.indices_at)
        #: Which positions are left, if the job continues another one.
        self.rest: Rest | None = None
        #: Seconds in which the loop waited for samples.
        self.waited = 0.0
        #: The last piece that was computed.
        self.last: Piece | None = None

    def pieces(self, ask: _paceline.Ask, batch_max: int | None) -> "Pieces":
        """The pieces of a share, read as they are asked for."""
        share = [at for start, end in ask.spans for at in range(start, end)]
        most = 1 if self.fixed is not None else batch_max or len(share)
        if self._prefetcher is not None:
            self._prefetcher.announce(share, ask.ahead)
        # Pieces of about the same size: a last piece of one sample would be slow, and wrong for batch norm.
        count = -(-len(share) // most)
        cuts = [len(share) * at // count for at in range(count + 1)]
        parts = [share[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
        return Pieces(self, parts)

    def read(self, positions: list[int]) -> Piece:
        """Reads one piece."""
        since = time.perf_counter()
        if self._prefetcher is not None:
            samples = self._prefetcher.take(positions)
        else:
            samples = _fetch(self.dataset, [index for at in positions for index in self.indices_at(at)])
        batch = self.collate(samples)
        if self.pins:
            batch = data._utils.pin_memory.pin_memory(batch)  # type: ignore[no-untyped-call]
        self.waited += time.perf_counter() - since
        self.last = Piece(len(samples), batch)
        return self.last

    def indices_at(self, position: int) -> list[int]:
        """The samples' indices at a position of the job."""
        if self.rest is not None:
            position = self.rest.at(position)
        if self.fixed is None:
            spans = [(position, position + 1)]
        else:
            epoch, at = divmod(position, self.per_epoch)
            start = epoch * self._indices + at * self.fixed
            spans = [(start, start + self.fixed)]
        places = self._places.at(spans)
        if self._order is None:
            return [index for _, index in places]
        return [self._epoch_order(epoch)[index] for epoch, index in places]

    def begin(self, rest: Rest | None) -> None:
        """The job begins; `rest`: which positions it has, if it continues another one."""
        self.rest = rest

    def close(self) -> None:
        """Ends the processes that read ahead."""
        if self._prefetcher is not None:
            self._prefetcher.close()

    def _epoch_order(self, epoch: int) -> list[int]:
        assert self._order is not None
        if epoch not in self._orders:
            indices = [int(index) for index in self._order(epoch)]
            if self._orders and len(indices) != self._indices:
                raise Refused(
                    f"order({epoch}) has {len(indices)} indices, and order(0) had {self._indices}: an epoch always has as many samples"
                )
            while len(self._orders) > 2:
                del self._orders[min(set(self._orders) - {0})]
            self._orders[epoch] = indices
        return self._orders[epoch]


class Pieces:
    """The pieces of a share: as long as they are many, read one at a time."""

    def __init__(self, samples: Samples, parts: list[list[int]]) -> None:
        self._samples = samples
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Piece]:
        return (self._samples.read(part) for part in self._parts)


class Loader:
    """What `worker.prepare` returns in place of the data loader: batches of this worker's share."""

    def __init__(self, host: "Host", samples: Samples) -> None:
        self._host = host
        self._samples = samples
        self.dataset = samples.dataset
        self.is_stepping = False

    def __len__(self) -> int:
        """The nominal number of updates in an epoch: an estimate, because shares and members change."""
        members = max(1, len(self._host.members))
        return -(-self._samples.per_epoch // (self._samples.batch * members))

    def __iter__(self) -> Iterator[Any]:
        """One batch for each update, until the epoch ends."""
        host = self._host
        if host.needs_steps is not None:
            raise Refused(
                f"{host.needs_steps}; code between backward() and step() would run on a part: loop over loader.steps(), and over the "
                "pieces of each step"
            )
        self.is_stepping = False
        while (pieces := host.next_share()) is not None:
            for piece in pieces:
                host.yielding(piece.samples, piece.batch, True)
                yield piece.batch
                host.yielded()

    def steps(self) -> "Iterator[Step]":
        """The updates of an epoch, on which all members agree. Iterate over the pieces of each, then call `optimizer.step()`."""
        self.is_stepping = True
        while self._host.next_step():
            yield Step(self._host)


class Step:
    """One update: its pieces come until there is something to apply."""

    def __init__(self, host: "Host") -> None:
        self._host = host

    def __iter__(self) -> Iterator[Any]:
        host = self._host
        while (pieces := host.next_pieces()) is not None:
            for piece in pieces:
                host.yielding(piece.samples, piece.batch, False)
                yield piece.batch
                host.yielded()


def _fetch(dataset: Any, indices: list[int]) -> list[Any]:
    if hasattr(dataset, "__getitems__"):
        return list(dataset.__getitems__(indices))
    return [dataset[index] for index in indices]


def _is_shuffled(sampler: Any, count: int, order: Callable[[int], Any] | None) -> bool:
    if order is not None:
        return False
    if isinstance(sampler, data.SequentialSampler):
        return False
    if isinstance(sampler, data.RandomSampler):
        if sampler.replacement or sampler.num_samples != count:
            raise Refused(
                "the loader's sampler draws samples with replacement, or another number than the data set has: give the order of the "
                "samples to worker.prepare(order=...)"
            )
        return True
    if isinstance(sampler, data.DistributedSampler):
        return bool(sampler.shuffle)
    raise Refused(
        f"the loader has a {type(sampler).__name__}: give the order of the samples' indices to worker.prepare(order=lambda epoch: ...), "
        "the same on all workers"
    )
