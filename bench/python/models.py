"""The models and data that `overhead.py` measures with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

__all__ = ["MODELS", "Noise"]


class Block(nn.Module):
    """A basic block of ResNet."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.short: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norms[0](self.one(x)))
        return torch.relu(self.norms[1](self.two(y)) + self.short(x))


def resnet18() -> nn.Module:
    """ResNet-18 with 1000 classes: 11.7 million parameters."""
    blocks: list[nn.Module] = []
    for before, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        blocks += [Block(before, after, stride), Block(after, after, 1)]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def transformer() -> nn.Module:
    """A transformer of 4 layers over 64 tokens: 3.3 million parameters."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
    return nn.Sequential(nn.Embedding(256, 256), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(256, 256))


class Noise(Dataset[Any]):
    """Random samples in memory: reading them costs nothing that is worth measuring."""

    def __init__(self, name: str, samples: int = 4096) -> None:
        self.name, self.samples = name, samples
        dice = torch.Generator().manual_seed(1)
        self.pictures = torch.randn(64, 3, 96, 96, generator=dice)
        self.tokens = torch.randint(0, 256, (64, 65), generator=dice)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        if self.name == "resnet18":
            return self.pictures[index % 64], torch.tensor(index % 1000)
        tokens = self.tokens[index % 64]
        return tokens[:-1], tokens[1:]


#: Name, how it is made, and its batch.
MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {"resnet18": (resnet18, 8), "transformer": (transformer, 16)}
