#!/usr/bin/env python3
"""Many workers on one machine: what a coordinator costs, and how long a join storm takes.

    cargo build --release && python3 bench/crowd.py --workers 200 [--strategy gossip-push] [--program target/release/paceline]

Starts `paceline coordinate` and all workers (`paceline join`) at once, over TLS on the loopback device, waits until the job ends, and prints
the seconds until all were members, the coordinator's CPU time and memory at that moment and at the end, and the journal's count of samples.
Workers hold a small model (`softmax`), so that what is measured is membership, leases and lines, not gradients.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

TICKS = os.sysconf("SC_CLK_TCK")


def cost(pid):
    """CPU seconds so far, and the largest resident memory in MB."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    with open(f"/proc/{pid}/status") as file:
        peak = next(line for line in file if line.startswith("VmHWM"))
    return (int(fields[11]) + int(fields[12])) / TICKS, int(peak.split()[1]) / 1024


def members(journal):
    """The members of the newest view."""
    newest = []
    try:
        with open(journal) as file:
            for line in file:
                if '"record":"view"' in line and line.endswith("\n"):
                    newest = json.loads(line)["members"]
    except FileNotFoundError:
        pass
    return newest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/paceline")
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--strategy", default="ssgd")
    parser.add_argument("--epochs", default="10")
    parser.add_argument("--patience", default="30")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which the run counts as stuck")
    options = parser.parse_args()
    program, count = os.path.abspath(options.program), options.workers
    folder = tempfile.mkdtemp(prefix="paceline-crowd-")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    state, started = f"{folder}/state", []

    def start(name, *arguments):
        with open(f"{folder}/{name}.out", "wb") as out, open(f"{folder}/{name}.err", "wb") as err:
            process = subprocess.Popen([program, *arguments], stdout=out, stderr=err, stdin=subprocess.DEVNULL, cwd=folder)
        started.append(process)
        return process

    try:
        coordinator = start("coordinator", "coordinate", "--strategy", options.strategy, "--workers", f"1:{count}", "--listen", address,
                            "--state", state, "--patience", options.patience, "--epochs", options.epochs, "--model", "softmax", "--batch", "1",
                            "--learning-rate", "0.01", "--json", "--no-report", "--no-save")
        while not os.path.exists(f"{state}/token"):
            time.sleep(0.01)
        began = time.monotonic()
        for number in range(count):
            start(f"worker-{number}", "join", address, "--token-file", f"{state}/token")
        together, at_storm = None, None
        while coordinator.poll() is None and time.monotonic() - began < options.limit:
            last = cost(coordinator.pid)
            if together is None and len(members(f"{state}/journal.jsonl")) == count:
                together, at_storm = time.monotonic() - began, last
            time.sleep(0.2)
        if coordinator.poll() != 0:
            sys.exit(f"the coordinator did not end well: {folder}")
        seconds = time.monotonic() - began
        with open(f"{folder}/coordinator.out") as file:
            result = json.load(file)
    finally:
        for process in started:
            process.kill()
            process.wait()
    ledger = result["ledger"]
    print(f"{count} workers, {options.strategy}: ended after {seconds:.1f} s; lost {ledger['lost']}, repeated {ledger['repeated']}, done {ledger['done']}")
    if together is None:
        print("  not all were members at the same time")
    else:
        print(f"  all were members {together:.1f} s after the first was started; until then the coordinator took {at_storm[0]:.2f} s of CPU and {at_storm[1]:.0f} MB")
    print(f"  in all the coordinator took {last[0]:.2f} s of CPU and {last[1]:.0f} MB")


if __name__ == "__main__":
    main()
