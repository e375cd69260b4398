"""Reads samples ahead in the processes of a data loader.

Which samples are this worker's next is known, because two rounds are dealt ahead, but not how many it takes at once. So the processes
read grains of a few samples, and a share takes samples out of grains. A thread fetches what the processes have read, while the loop
computes: a data loader only gives its processes more to read when something is fetched, and fetching takes time of its own. A data
loader asks its batch sampler inside `__next__`, so the sampler never waits and never ends: if nothing is known, it gives an empty grain.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import data

__all__ = ["Prefetcher"]


class _Grains:
    """The batch sampler: grains that were announced, or empty ones."""

    def __init__(self) -> None:
        #: Positions and indices of the grains that are to be read.
        self.queue: deque[tuple[list[int], list[int]]] = deque()
        #: The positions and indices of the grains that are under way, in order.
        self.under_way: deque[tuple[list[int], list[int]]] = deque()
        self.lock = threading.RLock()

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            with self.lock:
                grain: tuple[list[int], list[int]] = self.queue.popleft() if self.queue else ([], [])
                self.under_way.append(grain)
            yield grain[1]


def _as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def _stacked(samples: list[Any]) -> Any:
    """A grain as one batch: a few large tensors come from another process faster than many small ones."""
    return data.default_collate(samples) if samples else []


def _row(batch: Any, number: int) -> Any:
    """One sample out of a batch of `default_collate`."""
    if isinstance(batch, torch.Tensor):
        return batch[number]
    if isinstance(batch, Mapping):
        return {key: _row(part, number) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_row(part, number) for part in batch))
    # Texts come as a plain list with one element for each sample, everything else as a list of columns.
    if batch and isinstance(batch[0], str | bytes):
        return batch[number]
    return [_row(part, number) for part in batch]


class _Tolerant(data.Dataset[Any]):
    """The user's data set, which may be asked for no samples at all."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if not indices:
            return []
        if hasattr(self.dataset, "__getitems__"):
            return list(self.dataset.__getitems__(indices))
        return [self.dataset[index] for index in indices]

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)


class Prefetcher:
    """Reads samples ahead, and gives them by their positions."""

    def __init__(self, loader: "data.DataLoader[Any]", indices_at: Callable[[int], list[int]]) -> None:
        self._indices_at = indices_at
        self._grains = _Grains()
        self._is_stacked = loader.collate_fn is data.default_collate
        self._loader: data.DataLoader[Any] = data.DataLoader(
            _Tolerant(loader.dataset),
            batch_sampler=self._grains,
            collate_fn=_stacked if self._is_stacked else _as_they_are,
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            timeout=loader.timeout,
        )
        self._processes = max(1, loader.num_workers)
        self._batches: Iterator[Any] | None = None
        self._read: dict[int, list[Any]] = {}
        #: Guards all of this; told when something was announced, read, or has failed.
        self._changed = threading.Condition(self._grains.lock)
        self._failure: BaseException | None = None
        self._is_closed = False

    def announce(self, share: list[int], ahead: list[tuple[int, int]]) -> None:
        """This share is read next, and these positions follow. Samples that nobody wants any more are dropped."""
        wanted = share + [at for start, end in ahead for at in range(start, end)]
        keep = set(wanted)
        with self._changed:
            self._read = {at: samples for at, samples in self._read.items() if at in keep}
            # What is only queued is queued anew; what is under way comes anyhow.
            self._grains.queue.clear()
            coming = {at for positions, _ in self._grains.under_way for at in positions}
            missing = [at for at in wanted if at not in self._read and at not in coming]
            # A grain for each process makes a share.
            grain = -(-len(share) // self._processes)
            for start in range(0, len(missing), grain):
                positions = missing[start : start + grain]
                self._grains.queue.append((positions, [i for at in positions for i in self._indices_at(at)]))
            self._changed.notify_all()

    def take(self, positions: list[int]) -> list[Any]:
        """The samples at these positions; waits until they are read."""
        if self._batches is None:
            # Here and not on the other thread, so that the processes are those of the thread that trains.
            self._batches = iter(self._loader)
            threading.Thread(target=self._fetch, args=(self._batches,), name="paceline-reads", daemon=True).start()
        with self._changed:
            while any(at not in self._read for at in positions):
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()
            return [sample for at in positions for sample in self._read.pop(at)]

    def _fetch(self, batches: Iterator[Any]) -> None:
        """Fetches what is read, as long as something is; this is what the thread does."""
        grains = self._grains
        try:
            while True:
                with self._changed:
                    while not (self._is_closed or grains.queue or any(positions for positions, _ in grains.under_way)):
                        self._changed.wait()
                    if self._is_closed:
                        return
                batch = next(batches)
                positions, indices = grains.under_way[0]
                each = len(indices) // len(positions) if positions else 0
                samples = [_row(batch, row) for row in range(len(indices))] if self._is_stacked else batch
                with self._changed:
                    grains.under_way.popleft()
                    for number, at in enumerate(positions):
                        self._read[at] = samples[number * each : (number + 1) * each]
                    self._changed.notify_all()
        except BaseException as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the processes, as soon as they have read what they are reading."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._batches = None
