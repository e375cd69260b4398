"""Paceline's models as PyTorch modules, for the file weights.safetensors of a checkpoint.

    model = resnet20(channels=3, classes=10)
    model.load_state_dict(load_file("saved/round-000812/weights.safetensors"))
    model.eval()

Images have the shape (samples, channels, height, width), as usual in PyTorch. Texts are rows of tokens.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F


def rows(x):
    """Images as plain rows with channels last: the order in which `softmax` and `mlp` read them."""
    return x.permute(0, 2, 3, 1).flatten(1) if x.dim() == 4 else x


class Softmax(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.fc = nn.Linear(features, classes)

    def forward(self, x):
        return self.fc(rows(x))


class Mlp(nn.Module):
    """One hidden layer of 32, or two of 256 and 128 if a sample has 256 numbers or more."""

    def __init__(self, features, classes):
        super().__init__()
        widths = [32] if features < 256 else [256, 128]
        self.hidden = [f"fc{i + 1}" for i in range(len(widths))]
        for name, inputs, outputs in zip(self.hidden, [features] + widths, widths):
            self.add_module(name, nn.Linear(inputs, outputs))
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x):
        x = rows(x)
        for name in self.hidden:
            x = F.relu(self.get_submodule(name)(x))
        return self.fc(x)


class Cnn(nn.Module):
    def __init__(self, height, width, channels, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * (height // 2 // 2) * (width // 2 // 2), 128)
        self.fc = nn.Linear(128, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(F.relu(self.fc1(x.flatten(1))))


def group_norm(channels):
    """Groups of 8 channels; all channels are one group if 8 does not divide their number."""
    return nn.GroupNorm(channels // 8 if channels % 8 == 0 else 1, channels)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = norm(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, norm(outputs))

    def forward(self, x):
        skip = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + skip)


class Resnet(nn.Module):
    """The names are torchvision's, which calls a norm `bn` whatever its kind."""

    def __init__(self, widths, blocks, channels, classes, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.bn1 = norm(widths[0])
        self.stages = [f"layer{i + 1}" for i in range(len(widths))]
        inputs = widths[0]
        for name, outputs in zip(self.stages, widths):
            stride = 1 if name == "layer1" else 2
            stage = [Block(inputs, outputs, stride, norm)]
            stage += [Block(outputs, outputs, 1, norm) for _ in range(blocks - 1)]
            self.add_module(name, nn.Sequential(*stage))
            inputs = outputs
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return self.fc(x.mean((2, 3)))


class Charlm(nn.Module):
    """A pre-norm transformer over the characters of a text; position i predicts character i + 1."""

    def __init__(self, context, vocabulary):
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, 128)
        self.position_embedding = nn.Embedding(context, 128)
        layer = nn.TransformerEncoderLayer(
            128, nhead=4, dim_feedforward=512, dropout=0.0,
            activation=partial(F.gelu, approximate="tanh"), batch_first=True, norm_first=True,
        )
        norm = nn.LayerNorm(128)
        self.encoder = nn.TransformerEncoder(layer, 4, norm=norm, enable_nested_tensor=False)
        self.head = nn.Linear(128, vocabulary)

    def forward(self, tokens):
        length = tokens.shape[1]
        positions = torch.arange(length, device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        return self.head(self.encoder(x, mask=mask, is_causal=True))


def resnet8(channels, classes, norm=group_norm):
    return Resnet([16, 32, 64], 1, channels, classes, norm)


def resnet20(channels, classes, norm=group_norm):
    return Resnet([16, 32, 64], 3, channels, classes, norm)


def resnet18(channels, classes, norm=group_norm):
    return Resnet([64, 128, 256, 512], 2, channels, classes, norm)


def named(name, height, width, channels, classes):
    """The module of a model by the name that `--model` has. For a text, `channels` is the length of a row of tokens."""
    features = height * width * channels
    base, norm = (name[:-3], nn.BatchNorm2d) if name.endswith("-bn") else (name, group_norm)
    if base in ("resnet8", "resnet20", "resnet18"):
        make = {"resnet8": resnet8, "resnet20": resnet20, "resnet18": resnet18}[base]
        return make(channels, classes, norm)
    return {
        "softmax": lambda: Softmax(features, classes),
        "mlp": lambda: Mlp(features, classes),
        "cnn": lambda: Cnn(height, width, channels, classes),
        "charlm": lambda: Charlm(features - 1, classes),
    }[name]()
