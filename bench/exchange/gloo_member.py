"""Gloo (PyTorch) in bench/exchange.py: adds vectors with all_reduce and tells how long it took.

gloo_member.py NAME RANK MEMBERS STORE SOCKET"""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist

name, rank, members, store, path = sys.argv[1:]
torch.set_num_threads(1)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", init_method="file://" + store, rank=int(rank), world_size=int(members))
driver = socket.socket(socket.AF_UNIX)
driver.connect(path)
stream = driver.makefile("rw")
stream.write(f"{name} {rank}\n")
stream.flush()
for line in iter(stream.readline, ""):
    size, times = map(int, line.split())
    x, took = torch.zeros(size // 4), []
    dist.all_reduce(x)
    before = time.process_time_ns()
    for _ in range(times):
        start = time.perf_counter_ns()
        dist.all_reduce(x)
        took.append(time.perf_counter_ns() - start)
    cpu = time.process_time_ns() - before
    stream.write(",".join(map(str, took)) + f"|{cpu}\n")
    stream.flush()
