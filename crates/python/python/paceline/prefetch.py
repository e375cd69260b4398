"""Reads samples ahead in the processes of a data loader.

Which samples are this worker's next is known, but not how many it takes at once. So the processes read grains of a few samples, and
a share takes samples out of grains. Where shares change from round to round, their borders are not where they were expected: as many
samples beyond the borders are read, too, as these have moved lately. A data loader asks its batch sampler inside `__next__`, so the sampler never waits and never
ends: if nothing is known, it gives an empty grain.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import data

__all__ = ["Prefetcher"]


class _Grains:
    """The batch sampler: grains that were announced, or empty ones."""

    def __init__(self) -> None:
        self.queue: deque[tuple[list[int], list[int]]] = deque()
        #: The positions and indices of the grains that are under way, in order.
        self.under_way: deque[tuple[list[int], list[int]]] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        while True:
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
        #: How many positions the job has.
        self.total: int | None = None
        #: Where the next share was expected to be, and how far borders have moved lately.
        self._expected: tuple[int, int] | None = None
        self._moved = 0.0
        self._grains = _Grains()
        self._grain = max(1, -(-int(loader.batch_size or 1) // max(4, loader.num_workers)))
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
        self._batches: Iterator[Any] | None = None
        self._read: dict[int, list[Any]] = {}
        self._asked: set[int] = set()
        #: How many grains may be under way.
        self._depth = loader.num_workers * (loader.prefetch_factor or 2)

    def announce(self, share: list[int], ahead: list[tuple[int, int]]) -> None:
        """This share is read next, and these positions probably follow. Samples that nobody wants any more are dropped."""
        reach = 2 * len(share) + self._depth * self._grain
        wanted = list(share)
        for start, end in ahead:
            wanted.extend(range(start, min(end, start + reach)))
            reach -= end - start
            if reach <= 0:
                break
        wanted.extend(self._beyond(share, ahead))
        keep = set(wanted)
        self._read = {at: samples for at, samples in self._read.items() if at in keep}
        # What is only queued is queued anew; what is under way comes anyhow.
        self._grains.queue.clear()
        coming = {at for positions, _ in self._grains.under_way for at in positions}
        self._asked = coming
        missing = [at for at in wanted if at not in self._read and at not in coming]
        for start in range(0, len(missing), self._grain):
            positions = missing[start : start + self._grain]
            self._asked.update(positions)
            self._grains.queue.append((positions, [i for at in positions for i in self._indices_at(at)]))

    def _beyond(self, share: list[int], ahead: list[tuple[int, int]]) -> list[int]:
        """Positions beyond the borders of the share that is expected next: those that moved borders would make this worker's."""
        if self._expected is not None:
            moved = max(abs(share[0] - self._expected[0]), abs(share[-1] + 1 - self._expected[1]))
            # Forgotten slowly: speeds that have changed will change again.
            self._moved = max(0.9 * self._moved, float(moved))
        if not ahead:
            self._expected = None
            return []
        start, end = self._expected = ahead[0]
        margin = min(math.ceil(self._moved), len(share) // 2)
        last = end + margin if self.total is None else min(end + margin, self.total)
        return [*range(max(share[-1] + 1, start - margin), start), *range(end, last)]

    def take(self, positions: list[int]) -> list[Any]:
        """The samples at these positions; waits until they are read."""
        if self._batches is None:
            self._batches = iter(self._loader)
        while any(at not in self._read for at in positions):
            batch = next(self._batches)
            grain = self._grains.under_way.popleft()
            each = len(grain[1]) // len(grain[0]) if grain[0] else 0
            samples = [_row(batch, row) for row in range(len(grain[1]))] if self._is_stacked else batch
            for number, at in enumerate(grain[0]):
                self._read[at] = samples[number * each : (number + 1) * each]
        return [sample for at in positions for sample in self._read.pop(at)]

    def close(self) -> None:
        """Ends the processes."""
        self._batches = None
