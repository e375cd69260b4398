#!/usr/bin/env python3
"""Sums between processes: ours (shared memory, TCP, TLS) beside Open MPI and Gloo, in one interleaved run.

    python3 bench/exchange.py [--members 2,4] [--sizes 4096,65536,...] [--rounds 30] [--seconds 60] [--torch PYTHON]

Every contestant's processes stay alive and block while others run; bursts of all of them follow each other in random order, so that
a busy machine is busy for all. Prints medians of wall and CPU time (of all processes together), shares of what the machine can do (a
memcpy of the vector, a stream of it over loopback, vectors in shared memory that are added when a word says that they are there), and the
bars that we hold ourselves to. Open MPI is left out without mpicc, Gloo without a Python that has PyTorch. Sums of our members are compared with rank order, bit by bit."""
import argparse
import collections
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
NAMES = {4096: "4 kB", 65536: "64 kB", 1 << 20: "1 MB", 4 << 20: "4 MB", 16 << 20: "16 MB", 64 << 20: "64 MB"}
# What the machine can do. A copy of a short vector takes less than it takes one core to hear of the other: `bare` is what those are compared with.
LIMITS, SHORT = ["memcpy", "loopback", "bare"], 65536
# (what, ours, theirs, members, of CPU time?, the most that ours may take of theirs, by size)
BARS = [
    ("shared memory / Open MPI shared memory", "memory", "mpi-memory", 2, False, {4096: 0.3, 65536: 0.25, 1 << 20: 0.3, 16 << 20: 0.3, 64 << 20: 0.3}),
    ("TCP / Open MPI TCP", "tcp", "mpi-tcp", 2, False, {4096: 0.6, 65536: 0.8, 1 << 20: 0.8, 16 << 20: 0.8, 64 << 20: 0.8}),
    ("TCP / Open MPI TCP", "tcp", "mpi-tcp", 4, False, {4096: 1.6, 65536: 1.2, 1 << 20: 0.8, 16 << 20: 0.9, 64 << 20: 0.9}),
    ("TCP / Gloo", "tcp", "gloo", 2, False, {4096: 0.2, 65536: 0.3, 1 << 20: 0.6, 16 << 20: 1.0, 64 << 20: 1.0}),
    ("TCP / Gloo", "tcp", "gloo", 4, False, {4096: 0.2, 65536: 0.3, 1 << 20: 0.6, 16 << 20: 1.0, 64 << 20: 1.0}),
    ("TLS / TCP, CPU time", "tls", "tcp", 2, True, {1 << 20: 2.7, 16 << 20: 2.2, 64 << 20: 2.2}),
]


def build(folder):
    # Frames, boards and sums of the product, in a process that does nothing else.
    command = ["cargo", "build", "-q", "--release", "-p", "paceline-net", "--example", "exchange_member"]
    subprocess.run(command, check=True, cwd=ROOT)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    ours, mpi = os.path.join(target, "release/examples/exchange_member"), None
    if shutil.which("mpicc") and shutil.which("mpirun"):
        mpi = os.path.join(folder, "mpi_member")
        subprocess.run(["mpicc", "-O3", "-o", mpi, os.path.join(HERE, "exchange/mpi_member.c")], check=True)
    return ours, mpi


class Contestant:
    """Processes that add vectors when they are told to."""

    def __init__(self, name, members, commands, server, sizes, environment):
        self.name, self.members, self.processes = name, members, []
        environment = dict(os.environ, **environment)
        for command in commands:
            self.processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        streams, ports = {}, {}
        while len(streams) < members:
            stream = server.accept()[0].makefile("rw")
            _, rank, *listening = stream.readline().split()
            streams[int(rank)], ports[int(rank)] = stream, listening
        self.streams = [streams[rank] for rank in range(members)]
        for i in range(len(ports[0])):
            self.write(" ".join(ports[rank][i] for rank in range(members)))

    def write(self, line):
        for stream in self.streams:
            stream.write(line + "\n")
            stream.flush()

    def burst(self, size, times):
        """Seconds of each sum, until the last member has it, and of the CPUs for one sum."""
        self.write(f"{size} {times}")
        took, cpu = [], 0
        for stream in self.streams:
            line = stream.readline()
            if not line:
                sys.exit(f"{self.name}: a process has ended")
            wall, spent = line.split("|")
            took.append([int(it) * 1e-9 for it in wall.split(",")])
            cpu += int(spent) * 1e-9 / times
        return [max(all_ranks) for all_ranks in zip(*took)], cpu

    def end(self):
        for stream in self.streams:
            stream.close()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


def start(name, members, tools, server, path, folder, sizes):
    ours, mpi, torch = tools
    commands, environment = [], {}
    if name.startswith("mpi-"):
        if not mpi:
            return None
        layer = {"mpi-memory": "vader,self", "mpi-tcp": "tcp,self"}[name]
        environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        options = ["--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", layer, "--mca", "btl_tcp_if_include", "lo"]
        commands = [["mpirun", "-n", str(members), *options, mpi, name, path]]
    elif name == "gloo":
        if not torch:
            return None
        script, store = os.path.join(HERE, "exchange/gloo_member.py"), os.path.join(folder, f"store-{members}")
        commands = [[torch, script, name, str(rank), str(members), store, path] for rank in range(members)]
    else:
        authority = os.path.join(folder, f"authority-{members}")
        listed = ",".join(map(str, sizes))
        members = 1 if name in ("memcpy", "loopback") else members
        commands = [[ours, name, name, str(rank), str(members), listed, path, authority] for rank in range(members)]
    return Contestant(name, members, commands, server, sizes, environment)


def measure(contestants, sizes, rounds, seconds):
    wall, cpu = collections.defaultdict(list), collections.defaultdict(list)
    for size in sizes:
        expected = {it.name: statistics.median(it.burst(size, 1 if size > 4e6 else 3)[0]) for it in contestants}
        end, done = time.time() + seconds, 0
        while done < rounds or time.time() < end and done < 10 * rounds:
            done += 1
            for it in random.sample(contestants, len(contestants)):
                # Short bursts after a pause run undisturbed more often on a machine that others use, too.
                times = max(1, min(100, int(6e-3 / max(expected[it.name], 1e-6))))
                time.sleep(0.004)
                took, spent = it.burst(size, times)
                expected[it.name] = min(expected[it.name], statistics.median(took))
                wall[it.name, size].append(statistics.median(took))
                cpu[it.name, size].append(spent)
    return wall, cpu


def report(members, sizes, wall, cpu, names):
    median = {key: statistics.median(values) for key, values in wall.items()}
    spent = {key: statistics.median(values) for key, values in cpu.items()}
    for size in sizes:
        print(f"\n{members} processes, {NAMES.get(size, size)}, {len(wall[names[0], size])} rounds")
        print(f"{'':14}{'wall us':>11}{'CPU us':>11}   share of limit")
        for name in names:
            limit = "loopback" if name in ("tcp", "tls", "mpi-tcp", "gloo") else "bare" if size <= SHORT else "memcpy"
            share = f"{median[limit, size] / median[name, size]:8.2f} of {limit}" if name not in LIMITS and limit in names else ""
            print(f"{name:14}{median[name, size] * 1e6:11.1f}{spent[name, size] * 1e6:11.1f}   {share}")
    lines, failed = [], 0
    for what, ours, theirs, count, of_cpu, bars in BARS:
        if count != members or theirs not in names or ours not in names:
            continue
        times = cpu if of_cpu else wall
        for size in sizes:
            if size in bars:
                # Rounds are compared one by one: both met the same machine.
                ratio = statistics.median(x / y for x, y in zip(times[ours, size], times[theirs, size]))
                failed += ratio > bars[size]
                verdict = "pass" if ratio <= bars[size] else "FAIL"
                lines.append(f"{what}, {count} processes, {NAMES.get(size, size)}: {ratio:.2f} (bar {bars[size]}) {verdict}")
    print("\n" + "\n".join(lines))
    return failed


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--members", default="2,4")
    options.add_argument("--sizes", default="4096,65536,1048576,16777216,67108864")
    options.add_argument("--rounds", type=int, default=30)
    options.add_argument("--seconds", type=float, default=10, help="for each size, at least; more rounds are run meanwhile")
    options.add_argument("--torch", help="a Python that has PyTorch, for Gloo")
    options.add_argument("--only", help="contestants, separated by commas")
    given = options.parse_args()
    sizes = [int(it) for it in given.sizes.split(",")]
    all_names = ["memory", "copied", "tcp", "tls", "mpi-memory", "mpi-tcp", "gloo", *LIMITS]
    names = given.only.split(",") if given.only else all_names
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        tools = (*build(folder), given.torch)
        path = os.path.join(folder, "driver")
        server = socket.socket(socket.AF_UNIX)
        server.bind(path)
        server.listen(64)
        server.settimeout(120)
        for members in map(int, given.members.split(",")):
            contestants = []
            for name in names:
                it = start(name, members, tools, server, path, folder, sizes)
                if it is None:
                    print(f"without {name}: {'mpicc is not installed' if name != 'gloo' else 'no --torch was given'}")
                else:
                    contestants.append(it)
            wall, cpu = measure(contestants, sizes, given.rounds, given.seconds)
            for it in contestants:
                it.end()
            failed += report(members, sizes, wall, cpu, [it.name for it in contestants])
    print(f"\n{failed} bars failed; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
