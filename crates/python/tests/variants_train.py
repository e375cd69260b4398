"""The program of a worker that trains one job after the other: reads lines of JSON with `variant`, `address`, `token`, `out`."""

import json
import os
import sys
from typing import Any

import torch
import torch_loops
from torch_loops import VARIANTS, Indexed, worker_main


def main(pause: float) -> None:
    torch.set_num_threads(1)
    torch_loops.PAUSE = pause
    print("ready", flush=True)
    for line in sys.stdin:
        job: dict[str, Any] = json.loads(line)
        os.environ |= {"PACELINE_JOIN": job["address"], "PACELINE_TOKEN": job["token"]}
        log: dict[int, list[list[int]]] = {}
        model, _, _ = worker_main(VARIANTS[job["variant"]], Indexed(), None, log)
        [(worker, shares)] = log.items()
        torch.save({"model": model.state_dict(), "worker": worker, "shares": shares}, f"{job['out']}/{os.getpid()}.pt")
        print("done", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
