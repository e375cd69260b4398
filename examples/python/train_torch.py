"""A plain PyTorch loop that runs alone, on several processes, and simulated.

    python examples/python/train_torch.py
    torchrun --nproc-per-node 2 examples/python/train_torch.py
    paceline join HOST:7070 --token-file token -- python examples/python/train_torch.py
    python examples/python/train_torch.py --simulate
"""

import os
import sys

import paceline
import torch
import torch.nn.functional as F
from paceline import demo
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

train_set, test_set = [TensorDataset(torch.tensor(x), torch.tensor(y)) for x, y in demo.digits()]


def main() -> None:
    # On a cluster with a coordinator, its job says these.
    job = {} if "PACELINE_JOIN" in os.environ else {"strategy": "dbs", "epochs": 5}
    worker = paceline.join(**job)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(worker.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    loader = DataLoader(train_set, batch_size=16, shuffle=True)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    worker.keep(scheduler=scheduler)

    for epoch in worker.epochs():
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(worker.device)), y.to(worker.device))
            worker.loss(loss)
            loss.backward()
            optimizer.step()
        scheduler.step()
        if worker.is_first:
            with torch.no_grad():
                x, y = test_set.tensors
                accuracy = (model(x.to(worker.device)).argmax(1).cpu() == y).float().mean()
            print(f"epoch {epoch}: accuracy {accuracy:.1%}, {worker.status()}")


if __name__ == "__main__":
    if "--simulate" in sys.argv:
        paceline.simulate(main, "stragglers", workers=8, strategies=["ssgd", "dbs", "adpsgd"])
    else:
        main()
