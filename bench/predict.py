#!/usr/bin/env python3
"""Does the simulator predict a real cluster? Measures a running one with `paceline calibrate HOST:PORT`, and compares the time per epoch of
several recipes on it with what the simulator says.

    cargo build --release && python3 bench/predict.py [--runs 5] [--epochs 4] [--program target/release/paceline]

The cluster is four processes that sleep so that a sample takes them 2, 2, 4 and 8 ms. It is measured once, while it trains with ssgd; then every
recipe trains `--runs` times, recipes in turn, and the median counts. Simulated time knows nothing of these runs.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

RECIPES = ["ssgd", "abs", "dbs", "adpsgd", "gossip-pull", "gossip-push", "async"]
CLUSTER = ["--processes", "4", "--speeds", "4,4,2,1", "--pace", "0.002"]
# Nothing is written besides the result.
PLAIN = ["--json", "--no-report", "--no-save"]


def measure(program, folder, seconds):
    """Measures a running cluster; returns the path of its scenario."""
    command = [program, "train", *CLUSTER, "--strategy", "ssgd", "--epochs", "1000", "--page", "0", *PLAIN]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder)
    try:
        page = next(found[1] for line in run.stderr if (found := re.search(r"http://([0-9.:]+)", line)))
        time.sleep(3)
        scenario = f"{folder}/cluster.toml"
        subprocess.run([program, "calibrate", page, "--seconds", str(seconds), "--out", scenario], check=True)
    finally:
        run.terminate()
        run.stderr.read()
        run.wait()
    return scenario


def per_epoch(command, folder, field, epochs):
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)[field] / float(epochs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/paceline")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--epochs", default="4")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--recipes", nargs="*", default=RECIPES)
    options = parser.parse_args()
    program = os.path.abspath(options.program)
    with tempfile.TemporaryDirectory() as folder:
        print(f"load average {os.getloadavg()[0]:.1f}", flush=True)
        scenario = measure(program, folder, options.seconds)
        real = {recipe: [] for recipe in options.recipes}
        for _ in range(options.runs):
            for recipe in options.recipes:
                command = [program, "train", *CLUSTER, "--strategy", recipe, "--epochs", options.epochs, *PLAIN]
                real[recipe].append(per_epoch(command, folder, "real_seconds", options.epochs))
        print(f"\n| recipe | four processes, s per epoch (median and range of {options.runs}) | simulated | difference |\n|---|--:|--:|--:|")
        for recipe, times in real.items():
            command = [program, "simulate", scenario, "--strategy", recipe, "--epochs", options.epochs, "--json"]
            simulated = per_epoch(command, folder, "virtual_seconds", options.epochs)
            median = statistics.median(times)
            print(f"| {recipe} | {median:.3f} ({min(times):.3f} to {max(times):.3f}) | {simulated:.3f} | {100 * (simulated / median - 1):+.1f} % |")
        print(f"\nload average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
