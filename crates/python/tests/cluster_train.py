"""The program of a worker in the tests on real processes: python cluster_train.py OUT [options as JSON]"""

import json
import os
import sys
import time
from typing import Any

import paceline
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch_loops import TOTAL, Indexed, Net, _collate


class Stalling(Indexed):
    """A data set that is stuck in its n-th read."""

    def __init__(self, stalls_at: int) -> None:
        super().__init__()
        self.stalls_at = stalls_at

    def __getitem__(self, index: int) -> Any:
        if len(self.read) == self.stalls_at:
            say("stalled")
            time.sleep(600.0)
        return super().__getitem__(index)


def main(out: str, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    os.chdir(out)
    if "waits_for" in options:
        # Importing PyTorch takes its time; what is tested begins afterwards.
        say("ready")
        while not os.path.exists(options["waits_for"]):
            time.sleep(0.01)
    worker = paceline.join(**options.get("join", {}))
    # Other seeds everywhere: all begin with the parameters of the first worker.
    torch.manual_seed(options.get("seed", 0))
    model = Net(bn=options.get("bn", False))
    if "wide" in options:
        model.head = torch.nn.Linear(32, options["wide"])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2) if options.get("adamw") else torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7 if options.get("decays") else 1.0)
    loader = DataLoader(
        Stalling(options["stalls_at"]) if "stalls_at" in options else Indexed(),
        batch_size=options.get("batch", TOTAL // 3),
        shuffle=True,
        collate_fn=_collate,
        num_workers=options.get("readers", 0),
    )
    if "loads" in options:
        found = torch.load(options["loads"], weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        worker.load_state_dict(found["worker"])
    model, optimizer, shares = worker.prepare(model, optimizer, loader)
    worker.keep(scheduler=scheduler)
    say("joined", worker=worker.id, pid=os.getpid(), rank=os.environ.get("SLURM_PROCID"))
    forwards: list[int] = []
    for epoch in worker.epochs():
        for x, y, _, indices in shares:
            forwards.extend(indices)
            if options.get("fails_at") == worker.status().updates:
                raise RuntimeError("mine")
            if options.get("breaks_at") == worker.status().updates:
                return
            if options.get("exits_at") == worker.status().updates:
                sys.exit(3)
            # Once, and also if others had learned more than that when this worker joined.
            if "naps_at" in options and worker.status().updates >= options["naps_at"]:
                del options["naps_at"]
                say("napping", worker=worker.id)
                time.sleep(options["nap"])
            time.sleep(options.get("pause", 0.0))
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if options.get("saves_at") == worker.status().updates and worker.is_first:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "worker": worker.state_dict()}
                torch.save(states, options["saves"])
            say("updated", worker=worker.id, updates=worker.status().updates, epoch=epoch, at=time.monotonic())
        scheduler.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "forwards": forwards, "worker": worker.id},
        f"{out}/{os.getpid()}.pt",
    )
    say("done", worker=worker.id, progress=worker.progress)


def say(what: str, **more: Any) -> None:
    print(json.dumps({"what": what, **more}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
