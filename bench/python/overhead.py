"""What Paceline costs a PyTorch loop: a step alone against the bare loop, interleaved in one process, medians of several runs.

    python bench/python/overhead.py [--runs 5] [--steps 20]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import paceline
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def convolutions() -> tuple[nn.Module, TensorDataset]:
    """About as many parameters as ResNet-18 in a few layers."""
    layers: list[nn.Module] = []
    sides = [3, 64, 128, 256, 512, 512, 512]
    for before, after in zip(sides, sides[1:], strict=False):
        layers += [nn.Conv2d(before, after, 3, stride=2 if before >= 64 else 1, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))
    return model, TensorDataset(torch.randn(64, 3, 64, 64), torch.randint(0, 100, (64,)))


def transformer() -> tuple[nn.Module, TensorDataset]:
    """A small transformer over tokens."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0)
    body = nn.TransformerEncoder(layer, 4)
    model = nn.Sequential(nn.Embedding(256, 128), body, nn.Flatten(), nn.Linear(128 * 32, 100))
    return model, TensorDataset(torch.randint(0, 256, (64, 32)), torch.randint(0, 100, (64,)))


def stepper(make: Callable[[], Any], batch: int, is_bare: bool, steps: int) -> Callable[[], float]:
    """A function that makes one step and returns its seconds."""
    torch.manual_seed(0)
    model, data = make()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    loader: Any = DataLoader(data, batch_size=batch, shuffle=True)

    def forever() -> Any:
        while True:
            yield from loader

    if is_bare:
        batches = forever()
    else:
        worker = paceline.join(epochs=1000 + steps)
        model, optimizer, loader = worker.prepare(model, optimizer, loader)
        batches = (batch for _ in worker.epochs() for batch in loader)

    def step() -> float:
        since = time.perf_counter()
        x, y = next(batches)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        return time.perf_counter() - since

    return step


def main() -> None:
    """Prints a row for each model."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--steps", type=int, default=20)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    print(f"{'model':14}{'bare ms':>10}{'paceline ms':>13}{'ratio':>8}")
    for name, make in (("convolutions", convolutions), ("transformer", transformer)):
        ratios, times = [], []
        for _ in range(given.runs):
            pair = [stepper(make, 8, is_bare, given.steps) for is_bare in (True, False)]
            measured: list[list[float]] = [[], []]
            for number in range(given.steps + 2):
                for at, step in enumerate(pair):
                    seconds = step()
                    if number >= 2:
                        measured[at].append(seconds)
            bare, ours = (min(seconds) for seconds in measured)
            ratios.append(ours / bare)
            times.append((bare, ours))
        bare, ours = (statistics.median(part) * 1e3 for part in zip(*times, strict=True))
        print(f"{name:14}{bare:>10.1f}{ours:>13.1f}{statistics.median(ratios):>8.3f}")


if __name__ == "__main__":
    main()
