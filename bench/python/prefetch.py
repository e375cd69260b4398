"""How long a loop waits for its samples when shares change in every round.

    python bench/python/prefetch.py [--rounds 60] [--decode 0.010] [--readers 4] [--compute 0.005]

Two workers on threads, `lb-bsp`, 16 samples each on average. Decoding a sample takes 10 ms in one of 4 processes of the data loader
(slept, so that the machine's cores do not matter), computing 5 ms on average; both workers' speeds change in every round, and the
shares follow them. Prints the part of the steps' time in which the loops waited for samples; exits with 1 if it is 5 % or more.
"""

import argparse
import os
import random
import statistics
import sys
import time
from typing import Any

import paceline
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

#: Rounds that are not counted: the processes start, and speeds are not known yet.
WARM = 5


class Slow(Dataset[Any]):
    """Samples whose decoding takes its time."""

    def __init__(self, samples: int, decode: float) -> None:
        self.samples, self.decode = samples, decode

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.decode)
        return torch.full((4,), float(index)), index % 2


def main() -> int:
    """Returns the exit code."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=60)
    arguments.add_argument("--decode", type=float, default=0.010)
    arguments.add_argument("--readers", type=int, default=4)
    arguments.add_argument("--compute", type=float, default=0.005)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    rows: dict[int, list[tuple[int, float, float]]] = {}

    def train() -> None:
        worker = paceline.join(epochs=1, strategy="lb-bsp")
        model: Any = nn.Linear(4, 2)
        optimizer: Any = torch.optim.SGD(model.parameters(), 1e-6)
        data = Slow(32 * given.rounds, given.decode)
        loader: Any = DataLoader(data, batch_size=16, num_workers=given.readers, shuffle=True)
        model, optimizer, loader = worker.prepare(model, optimizer, loader)
        mine, dice = rows.setdefault(worker.id, []), random.Random(worker.id)
        since, waited = time.perf_counter(), 0.0
        for _ in worker.epochs():
            for x, y in loader:
                time.sleep(given.compute * dice.uniform(0.5, 1.5) * len(y))
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                now, total = time.perf_counter(), worker.status().waited
                mine.append((len(y), now - since, total - waited))
                since, waited = now, total

    paceline.threads(train, workers=2)
    worst = 0.0
    for who, steps in sorted(rows.items()):
        counted = steps[WARM:-1]
        part = sum(wait for _, _, wait in counted) / sum(step for _, step, _ in counted)
        shares = [share for share, _, _ in counted]
        changes = sum(1 for a, b in zip(shares, shares[1:], strict=False) if a != b)
        worst = max(worst, part)
        middle = statistics.median(step for _, step, _ in counted)
        print(
            f"worker {who}: {len(counted)} steps of {middle * 1e3:.0f} ms, shares {min(shares)} to {max(shares)}, changed {changes} "
            f"times; waited {part:.2%} of the time; load average {os.getloadavg()[0]:.1f}"
        )
    return int(worst >= 0.05)


if __name__ == "__main__":
    sys.exit(main())
