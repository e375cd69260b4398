"""The loop of cluster_train.py with DistributedDataParallel, on the same samples in the same order."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from paceline import _paceline
from torch.nn.parallel import DistributedDataParallel
from torch_loops import SAMPLES, Net, Pictures

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
data, order, share = Pictures(), _paceline.Order(1, SAMPLES, True), 8
for epoch in range(3):
    for update in range(SAMPLES // (2 * share)):
        start = epoch * SAMPLES + update * 2 * share + dist.get_rank() * share
        rows = [data[index] for _, index in order.at([(start, start + share)])]
        x, y, _ = (torch.stack(column) for column in zip(*rows, strict=True))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), sys.argv[1])
# Nobody ends while the other one still saves.
dist.barrier()
dist.destroy_process_group()
