#!/usr/bin/env python3
"""Seconds to a target with workers of unequal speed: every recipe beside ssgd, on real processes.

The workers take 1, 1, 2 and 4 times as long for a sample. `slept`: each gradient sleeps until its time has passed, so that only
the schedule counts. `quota`: workers compute as fast as their share of the processor allows (cgroup v1, needs root), so that
whatever Paceline itself computes is paid for, too. The judge is the validation loss of the model that would be deployed.

    bench/uneven.sh                       # builds the program; all recipes, 3 seeds, slept and by quotas
    bench/uneven.sh --how slept --recipes ssgd dbs abs

Recipes alternate, seed by seed, so that a busy minute of the machine meets all of them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

RECIPES = ("ssgd qsgd dbs lb-bsp dynamic pipe abs cpsgd adpsgd local-dbs diloco gossip-pull gossip-push easgd async ssp").split()
CGROUPS = "/sys/fs/cgroup/cpu"
# Cores of each worker: 1 : 1 : 1/2 : 1/4, and so few that other work on the machine leaves them.
QUOTAS = [0.08, 0.08, 0.04, 0.02]
PERIOD = 100_000
JOBS = {
    # A batch of the fastest worker takes 32 ms.
    "slept": ["--speeds", "4,4,2,1", "--pace", "0.002", "--epochs", "10", "--target-loss", "0.12"],
    # A model that takes long enough to compute.
    "quota": ["--model", "resnet8", "--batch", "64", "--validation", "0.03", "--epochs", "10", "--target-loss", "0.4"],
}


class Quotas:
    """Control groups of our own, one for each worker; they are removed at the end."""

    def __init__(self):
        self.groups = []
        for worker, cores in enumerate(QUOTAS):
            group = f"{CGROUPS}/paceline-{os.getpid()}-{worker}"
            os.mkdir(group)
            self.groups.append(group)
            for name, value in (("cfs_period_us", PERIOD), ("cfs_quota_us", int(PERIOD * cores))):
                with open(f"{group}/cpu.{name}", "w") as file:
                    file.write(str(value))

    def take(self, parent):
        """Puts the worker processes of a parent into the groups, as soon as they are there."""
        children = []
        while len(children) < len(self.groups) and parent.poll() is None:
            with open(f"/proc/{parent.pid}/task/{parent.pid}/children") as file:
                children = file.read().split()
            time.sleep(0.002)
        for group, child in zip(self.groups, children):
            with open(f"{group}/cgroup.procs", "w") as file:
                file.write(child)

    def remove(self):
        for group in self.groups:
            os.rmdir(group)


def run(options, how, recipe, seed, quotas):
    """Trains once; returns the seconds to the target, and until the end."""
    command = [options.program, "train", "--processes", "4", "--strategy", recipe, "--seed", str(seed), "--json", "--no-report", *JOBS[how]]
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        if quotas:
            quotas.take(process)
        code = process.wait()
        out.seek(0)
        result = json.loads(out.read() or "{}")
    if code != 0 or result["ledger"]["lost"] or result["ledger"]["repeated"]:
        raise SystemExit(f"{' '.join(command)} failed: {result.get('ledger')}")
    return result["seconds_to_target"]


def shown(seconds):
    known = [value for value in seconds if value is not None]
    if len(known) < len(seconds):
        return f"reached in {len(known)} of {len(seconds)}"
    return f"{statistics.median(known):.1f} ({min(known):.1f} to {max(known):.1f})"


def table(found, ways, recipes):
    print("| recipe | " + " | ".join(f"{how}: seconds to target | than ssgd" for how in ways) + " |")
    print("|---|" + "--:|--:|" * len(ways))
    for recipe in recipes:
        cells = []
        for how in ways:
            seconds = found[how, recipe]
            pairs = [(base, own) for base, own in zip(found[how, "ssgd"], seconds) if base and own]
            ratio = statistics.median(base / own for base, own in pairs) if len(pairs) == len(seconds) else None
            cells += [shown(seconds), f"{ratio:.2f}x" if ratio else "-"]
        print(f"| {recipe} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--how", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--program", default="target/release/paceline")
    options = parser.parse_args()
    recipes = options.recipes if "ssgd" in options.recipes else ["ssgd", *options.recipes]
    if "quota" in options.how and not os.access(f"{CGROUPS}/cpu.cfs_quota_us", os.R_OK):
        raise SystemExit(f"quotas need root and cgroup v1 in {CGROUPS}: give --how slept")
    found = {(how, recipe): [] for how in options.how for recipe in recipes}
    loads = []
    for how in options.how:
        quotas = Quotas() if how == "quota" else None
        try:
            for seed in range(1, options.seeds + 1):
                for recipe in recipes:
                    seconds = run(options, how, recipe, seed, quotas)
                    found[how, recipe].append(seconds)
                    loads.append(os.getloadavg()[0])
                    print(f"{how}, seed {seed}, {recipe}: {seconds}", file=sys.stderr, flush=True)
        finally:
            if quotas:
                quotas.remove()
    print(f"4 processes, {options.seeds} seeds; load of the machine {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores\n")
    table(found, options.how, recipes)


if __name__ == "__main__":
    main()
