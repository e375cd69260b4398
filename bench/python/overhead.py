"""What Paceline costs a PyTorch loop: seconds of a step, alone beside the bare loop, and in several processes beside DDP over Gloo.

    python bench/python/overhead.py [--models resnet18 transformer] [--worlds 1 2 4] [--runs 5] [--steps 20]

Contestants take turns run by run (medians over the runs), so that a busy minute hits both alike. Every process uses one thread. Ratios
are those of neighbouring runs.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
#: Steps that are not measured: memory is new, and shares are not known yet.
WARM = 4


def train(contestant: str, name: str, steps: int) -> None:
    """One process of a run; prints the seconds of its steps."""
    import torch
    import torch.nn.functional as F
    from models import MODELS, Noise
    from torch.utils.data import DataLoader, DistributedSampler

    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, batch = MODELS[name]
    model, data = make(), Noise(name)
    batches: Iterator[Any]
    if contestant == "paceline":
        import paceline

        worker = paceline.join(epochs=100)
        optimizer: Any = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
        loader: Any = DataLoader(data, batch_size=batch, shuffle=True)
        model, optimizer, loader = worker.prepare(model, optimizer, loader)
        batches = (one for _ in worker.epochs() for one in loader)
    else:
        sampler: Any = None
        if contestant == "ddp":
            torch.distributed.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
            sampler = DistributedSampler(data)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
        loader = DataLoader(data, batch_size=batch, sampler=sampler, shuffle=None if sampler else True)
        batches = iter(loader)
    took = []
    for number in range(steps + WARM):
        since = time.perf_counter()
        x, y = next(batches)
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()
        if number >= WARM:
            took.append(time.perf_counter() - since)
    print(json.dumps(took), flush=True)
    os._exit(0)


def run(contestant: str, name: str, world: int, steps: int) -> float:
    """The median step of a run, in seconds: of the slowest process, because all wait for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        base = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "GLOO_SOCKET_IFNAME": "lo", "PACELINE_STATE": f"{folder}/state"}
        command = [sys.executable, os.path.abspath(__file__), "--process", contestant, "--models", name, "--steps", str(steps)]
        launched = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(world)}
        children = []
        for rank in range(world):
            ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_RUN_ID": str(port)} | launched if world > 1 else {}
            children.append(subprocess.Popen(command, env=base | ranks, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        told = [child.communicate(timeout=600) for child in children]
    if any(not out.strip() for out, _ in told):
        raise SystemExit(f"{contestant} {name} {world} failed:\n" + "\n".join(errors[-2000:] for _, errors in told))
    return max(statistics.median(json.loads(out.splitlines()[-1])) for out, _ in told)


def main() -> None:
    """Prints a row for each model and number of processes."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--models", nargs="+", default=["resnet18", "transformer"])
    arguments.add_argument("--worlds", nargs="+", type=int, default=[1, 2, 4])
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--process", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.process:
        sys.path.insert(0, HERE)
        return train(given.process, given.models[0], given.steps)
    print(f"{'model':13}{'processes':>10}{'beside':>8}{'theirs ms':>11}{'paceline ms':>13}{'ratio':>8}   ratios of the runs; load average")
    for name in given.models:
        for world in given.worlds:
            other = "bare" if world == 1 else "ddp"
            pairs = []
            for number in range(given.runs):
                order = (other, "paceline") if number % 2 == 0 else ("paceline", other)
                seconds = {one: run(one, name, world, given.steps) for one in order}
                pairs.append((seconds[other], seconds["paceline"]))
            theirs, ours = (statistics.median(part) * 1e3 for part in zip(*pairs, strict=True))
            ratios = sorted(ours / theirs for theirs, ours in pairs)
            shown = " ".join(f"{ratio:.3f}" for ratio in ratios)
            print(f"{name:13}{world:>10}{other:>8}{theirs:>11.1f}{ours:>13.1f}{statistics.median(ratios):>8.3f}   {shown}; {os.getloadavg()[0]:.1f}", flush=True)
    return None


if __name__ == "__main__":
    main()
