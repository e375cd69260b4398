"""PyTorch's side of `cargo bench --bench compute -- --torch`: the same models, each trained in the fastest way found.

Reads requests from standard input, one per line, and answers each with a line of JSON:
    tune MODEL              finds the fastest way to train the model and uses it from then on
    take MODEL WAY          uses the given way from then on
    measure MODEL SECONDS   samples per second of wall-clock time and of CPU time
"""

import contextlib
import json
import sys
import time
import warnings

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 64
CLASSES = 10
CONTEXT = 64
VOCABULARY = 65


def mlp():
    return nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, CLASSES)
    )


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1568, 128), nn.ReLU(), nn.Linear(128, CLASSES),
    )  # fmt: skip


def group_norm(channels):
    return nn.GroupNorm(channels // 8, channels)


class Block(nn.Module):
    def __init__(self, inputs, channels, stride, norm):
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False),
            norm(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            norm(channels),
        )
        self.skip = nn.Identity()
        if stride > 1:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, channels, 1, stride, bias=False), norm(channels)
            )

    def forward(self, x):
        return F.relu(self.branch(x) + self.skip(x), inplace=True)


def resnet20(norm):
    layers = [nn.Conv2d(3, 16, 3, padding=1, bias=False), norm(16), nn.ReLU(inplace=True)]
    inputs = 16
    for channels in [16, 32, 64]:
        for _ in range(3):
            layers.append(Block(inputs, channels, channels // inputs, norm))
            inputs = channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)]
    return nn.Sequential(*layers)


class Layer(nn.Module):
    """A layer of a pre-norm transformer."""

    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(channels)
        self.queries_keys_values = nn.Linear(channels, 3 * channels)
        self.after_attention = nn.Linear(channels, channels)
        self.dense = nn.Sequential(
            nn.LayerNorm(channels),
            nn.Linear(channels, 4 * channels),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * channels, channels),
        )

    def forward(self, x):
        samples, places, channels = x.shape
        together = self.queries_keys_values(self.before_attention(x))
        heads = together.view(samples, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.after_attention(seen.transpose(1, 2).reshape(samples, places, channels))
        return x + self.dense(x)


class Charlm(nn.Module):
    def __init__(self, channels=128, layers=4, heads=4):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, channels)
        self.places = nn.Parameter(0.1 * torch.randn(CONTEXT, channels))
        self.layers = nn.Sequential(
            *[Layer(channels, heads) for _ in range(layers)],
            nn.LayerNorm(channels),
            nn.Linear(channels, VOCABULARY),
        )

    def forward(self, tokens):
        return self.layers(self.tokens(tokens) + self.places).flatten(0, 1)


MODELS = {
    "mlp": (mlp, (784,)),
    "cnn": (cnn, (1, 28, 28)),
    "resnet20": (lambda: resnet20(group_norm), (3, 32, 32)),
    "resnet20-bn": (lambda: resnet20(nn.BatchNorm2d), (3, 32, 32)),
    "charlm": (Charlm, None),
}


def samples(shape):
    """Random inputs and labels: only the time counts."""
    if shape is None:
        tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()
    return torch.randn(BATCH, *shape), torch.randint(CLASSES, (BATCH,))


def layouts(shape):
    """The memory layouts to try."""
    return ["channels last", "channels first"] if shape and len(shape) == 3 else [""]


def called(run, layout):
    return ", ".join(filter(None, [run, layout]))


def stepper(name, way):
    """A function that does one step: forward, backward, SGD with momentum."""
    make, shape = MODELS[name]
    torch.manual_seed(1)
    model, (inputs, labels) = make(), samples(shape)
    if "channels last" in way:
        model = model.to(memory_format=torch.channels_last)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    # The fused update is faster than the one by lists of tensors, for all of these models.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)

    def loss(inputs, labels):
        return F.cross_entropy(model(inputs), labels)

    if "compiled" in way:
        torch.compiler.reset()
        loss = torch.compile(loss, options={"cpp_wrapper": "C++ wrapper" in way})

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(inputs, labels).backward()
        optimizer.step()

    for _ in range(3):
        step()
    return step


def measure(step, seconds):
    step()
    steps, wall, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        step()
        steps += 1
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"wall": BATCH * steps / wall, "cpu": BATCH * steps / cpu}


def tune(name):
    """The fastest way. Compiling takes minutes, so only the fastest memory layout is compiled, and the C++ wrapper is
    tried only if compiling is not slower."""
    steps, rates, failed = {}, {}, []

    def try_ways(some):
        for way in some:
            try:
                steps[way] = stepper(name, way)
            except Exception as error:  # This PyTorch does not support it.
                failed.append(f"{way}: {str(error).splitlines()[0]}")
        # In turn, so that a disturbance does not hit one of them alone.
        for _ in range(3):
            for way, step in steps.items():
                rates[way] = max(rates.get(way, 0.0), measure(step, 0.3)["cpu"])

    try_ways(called("eager", layout) for layout in layouts(MODELS[name][1]))
    eager = max(rates, key=rates.get)
    layout = eager.removeprefix("eager").removeprefix(", ")
    compiled = called("compiled", layout)
    try_ways([compiled])
    if rates.get(compiled, 0.0) >= 0.95 * rates[eager]:
        try_ways([called("compiled with C++ wrapper", layout)])
    best = max(rates, key=rates.get)
    params = sum(p.numel() for p in MODELS[name][0]().parameters())
    return steps[best], {"way": best, "params": params, "rates": rates, "failed": failed}


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    kept = {}
    answers = sys.stdout
    for line in sys.stdin:
        verb, name, *rest = line.split()
        # Libraries may print; only answers go to standard output.
        with contextlib.redirect_stdout(sys.stderr):
            if verb == "tune":
                kept[name], answer = tune(name)
            elif verb == "take":
                kept[name], answer = stepper(name, " ".join(rest)), {}
            else:
                answer = measure(kept[name], float(rest[0]))
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
