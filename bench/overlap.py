#!/usr/bin/env python3
"""How much of a slow exchange `delayed` (recipe `pipe`) hides behind computing, with real processes on a slow link, or with MPI ranks.

    python3 bench/overlap.py [--rate 200mbit] [--model cnn] [--batch 512] [--epochs 40] [--program target/release/paceline]
    python3 bench/overlap.py --mpi "mpirun -n 2" --model resnet18 --batch 16 --pace 0.02 --samples 320 --epochs 1

Trains with two worker processes in a network namespace of its own, whose loopback device is as slow as --rate says (tc, tbf). Workers
sleep out their time per sample (`--speeds 1,1`), so that computing takes as long as on cores of their own. The journal says when a worker
entered an exchange, when it had nothing else to do, and when it had the result. Overlap: the part of the time that all-reduce waits for
an exchange which `pipe` does not wait. Needs the right to make namespaces, ip and tc; with --mpi, a launcher and a program with the
feature `mpi`: its ranks use whatever MPI chooses between them."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def train(strategy, given, folder):
    """Seconds that a worker computes for an exchange, that it waits for one, and that a round takes."""
    journal = os.path.join(folder, f"{strategy}.jsonl")
    command = [given.program, "train", "--strategy", strategy, "--model", given.model, "--batch", str(given.batch)]
    command += ["--epochs", str(given.epochs), "--speeds", "1,1", "--json", "--no-save", "--no-report", "--journal", journal]
    command += ["--pace", str(given.pace)] if given.pace else []
    command += ["--samples", str(given.samples)] if given.samples else []
    command = [*given.mpi.split(), *command, "--cluster", "mpi"] if given.mpi else [*command, "--processes", "2"]
    environment = dict(os.environ, PACELINE_SHARED_MEMORY="off")
    # Whether anything was learned does not matter here.
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if not os.path.exists(journal):
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    lines = [json.loads(line) for line in open(journal)]
    exchanged = [line for line in lines if line["record"] == "exchanged"][4:]
    computed = [line["compute"] for line in lines if line["record"] == "entered"]
    ends = [line["at"] for line in exchanged if line["who"] == 0]
    waits = [line["at"] - line["blocked"] for line in exchanged]
    rounds = [after - before for before, after in zip(ends, ends[1:])]
    return statistics.median(computed), statistics.mean(waits), statistics.mean(rounds)


def slow_down(rate):
    # A bucket that is small beside a vector: one that fills up while workers compute would hide the exchange itself.
    subprocess.run(["ip", "link", "set", "lo", "mtu", "1500", "up"], check=True)
    shape = ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", rate, "burst", "16k", "limit", "32m"]
    subprocess.run(shape, check=True)


def compare(given):
    with tempfile.TemporaryDirectory() as folder:
        compute, wait, round_time = train("ssgd", given, folder)
        compute_piped, wait_piped, round_piped = train("pipe", given, folder)
    print(f"{given.model}, batch {given.batch}, {given.mpi or given.rate}, means of a round:")
    print(f"all-reduce  computes {compute * 1e3:6.1f} ms, waits {wait * 1e3:6.1f} ms, takes {round_time * 1e3:6.1f} ms")
    print(f"pipe        computes {compute_piped * 1e3:6.1f} ms, waits {wait_piped * 1e3:6.1f} ms, takes {round_piped * 1e3:6.1f} ms")
    best = min(1.0, compute_piped / wait)
    print(f"overlap {100 * (1 - wait_piped / wait):.0f} % (at best {100 * best:.0f} %: the exchange against the computing that can hide it)")


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--rate", default="200mbit")
    options.add_argument("--model", default="cnn")
    options.add_argument("--batch", type=int, default=512)
    options.add_argument("--epochs", type=float, default=40)
    options.add_argument("--samples", type=int, help="of the data")
    options.add_argument("--pace", type=float, help="seconds that a sample takes; more than it really does")
    options.add_argument("--mpi", help="the launcher of two ranks, with its options")
    options.add_argument("--program", default=os.path.join(ROOT, "target/release/paceline"))
    options.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.inside:
        slow_down(given.rate)
    if given.inside or given.mpi:
        return compare(given)
    again = [sys.executable, os.path.abspath(__file__), "--inside", *sys.argv[1:]]
    os.execvp("unshare", ["unshare", "--map-root-user", "--net", *again])


if __name__ == "__main__":
    main()
