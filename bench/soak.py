#!/usr/bin/env python3
"""Disturbs real trainings at random moments until a given number of processes has been killed, and prints how long each recovery took.

Each run trains one recipe with `paceline coordinate` and 4 to 6 processes of `paceline join`, over TLS on the loopback device.
Until it ends, workers are killed (kill -9; the first member, which hosts the center, more often than by chance), two at once,
stopped and continued, asked to leave (SIGTERM), and new ones join; the coordinator is killed and started again. A run counts as
wrong if it does not end, if a sample is lost or repeated, if members disagree, if training starts over, or if the loss does not fall.

    bench/soak.sh --kills 1000              # builds the program, and runs this file
"""

import argparse
import collections
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

RECIPES = ("ssgd qsgd dbs lb-bsp dynamic pipe abs cpsgd adpsgd local-dbs diloco gossip-pull gossip-push easgd async ssp").split()
WORKERS_MIN, WORKERS_MAX = 4, 6
# Training must move on within this time, whatever happened.
STUCK = 60.0
KILL, KILL_FIRST, KILL_TWO, STOP, PAUSE, LEAVE, KILL_COORDINATOR, KILL_BOTH = (
    "kill -9 of a worker", "kill -9 of the first member", "kill -9 of two workers at once",
    "SIGSTOP for longer than the patience", "SIGSTOP for less than the patience", "SIGTERM: leaves",
    "kill -9 of the coordinator", "kill -9 of coordinator and worker")
WEIGHTS = {KILL: 40, KILL_FIRST: 20, KILL_TWO: 8, STOP: 6, PAUSE: 6, LEAVE: 8, KILL_COORDINATOR: 8, KILL_BOTH: 4}
# The interesting kinds of lines; the others are not parsed.
KINDS = [f'"record":"{kind}"' for kind in ("applied", "view", "started_over", "disagreed", "gave_up", "put_out", "finished")]


class Wrong(Exception):
    """Something that must hold does not."""


class Journal:
    """The journal of a coordinator, read while it is written."""

    def __init__(self, path):
        self.path, self.at, self.part, self.read_before = path, 0, b"", 0
        self.views, self.applied = [], []
        self.counts = collections.Counter()
        self.finished = []

    def read(self):
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self.at:
                    # A coordinator that was started again has cut off what was not in its log.
                    self.read_before = len(self.applied)
                    self.at, self.part, self.views, self.applied, self.finished = 0, b"", [], [], []
                    self.counts.clear()
                file.seek(self.at)
                text = file.read()
        except FileNotFoundError:
            return
        now = time.monotonic()
        self.at += len(text)
        *lines, self.part = (self.part + text).split(b"\n")
        for line in lines:
            if any(kind.encode() in line for kind in KINDS):
                self.take(json.loads(line), now)

    def take(self, line, now):
        kind = line["record"]
        self.counts[kind] += 1
        if kind == "view":
            self.views.append((line["number"], line["members"]))
        elif kind == "applied":
            view = line["result"]["view"] if line.get("result") else None
            samples = sum(end - begin for begin, end in line["spans"])
            # With the time at which it was seen, and the number of views before it.
            seen = now if len(self.applied) >= self.read_before else 0
            self.applied.append((seen, view, len(self.views), line["loss_sum"] / max(samples, 1)))
        elif kind == "finished":
            self.finished.append(line["fingerprint"])

    @property
    def members(self):
        return self.views[-1][1] if self.views else []

    def next_applied(self, since, without=()):
        """When it was seen that samples were applied after `since`; in a view without these workers. The coordinator writes lines that
        no worker waits for after 50 ms, so that times are longer by up to this much."""
        first = None
        if without:
            for index, (number, members) in enumerate(self.views):
                is_without = not set(without) & set(members)
                first = (first or (index + 1, number)) if is_without else None
            if first is None:
                return None
        found = None
        for seen, view, known, _ in reversed(self.applied):
            if seen <= since:
                break
            if first is None or (view is None and known >= first[0]) or (view is not None and view >= first[1]):
                found = seen
        return found


class Run:
    def __init__(self, options, recipe, seed):
        self.options, self.recipe, self.seed = options, recipe, seed
        self.dice = random.Random(seed)
        self.folder = tempfile.mkdtemp(prefix="paceline-soak-")
        self.workers, self.left, self.started = [], [], 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.journal = Journal(f"{self.folder}/state/journal.jsonl")
        self.events = []
        self.coordinator, self.stopped_last = None, None

    def start(self, name, arguments):
        self.started += 1
        path = f"{self.folder}/{name}-{self.started}"
        with open(path + ".out", "wb") as out, open(path + ".err", "wb") as err:
            process = subprocess.Popen([self.options.program, *arguments], stdout=out, stderr=err, stdin=subprocess.DEVNULL, cwd=self.folder)
        process.path, process.who = path, None
        return process

    def coordinate(self):
        o = self.options
        self.coordinator = self.start("coordinator", [
            "coordinate", "--strategy", self.recipe, "--workers", f"2:{WORKERS_MAX}", "--listen", self.address,
            "--state", f"{self.folder}/state", "--patience", str(o.patience), "--epochs", str(o.epochs),
            "--seed", str(self.seed), "--json", "--no-report"])

    def join(self):
        token = f"{self.folder}/state/token"
        self.workers.append(self.start("worker", ["join", self.address, "--token-file", token]))

    def messages(self, process):
        with open(process.path + ".err") as file:
            return file.read()

    def id_of(self, worker):
        """The worker's newest id."""
        for line in self.messages(worker).splitlines():
            if line.startswith("joined as worker "):
                worker.who = int(line.split()[3].rstrip(";"))
        return worker.who

    def wait(self, what, is_so, limit=STUCK):
        """Until something is so; `False` if the run has ended before."""
        end = time.monotonic() + limit
        while True:
            self.journal.read()
            if is_so():
                return True
            if self.coordinator.poll() is not None:
                return False
            if time.monotonic() > end:
                raise Wrong(f"not within {limit} s: {what}")
            time.sleep(0.005)

    def living(self):
        return [worker for worker in self.workers if worker.poll() is None]

    def victims(self, count=1, first=False):
        """Workers that are members now."""
        members = self.journal.members
        here = [worker for worker in self.living() if self.id_of(worker) in members]
        if first:
            return [worker for worker in here if worker.who == members[0]]
        return self.dice.sample(here, min(count, len(here)))

    def measure(self, what, since, without=(), limit=STUCK):
        """Waits until samples are applied again; without these workers, if they were members."""
        found = []

        def is_so():
            at = self.journal.next_applied(since, without)
            found[:] = [at] if at else []
            return bool(found)

        if self.wait(f"samples are applied after {what}", is_so, limit):
            self.events.append({"recipe": self.recipe, "what": what, "seconds": found[0] - since})

    def disturb(self):
        """One fault, and the wait until training moves on. Returns how many processes were killed."""
        self.stopped_last = None
        what = self.dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        patience = self.options.patience
        if what in (KILL_COORDINATOR, KILL_BOTH):
            victims = self.victims() if what == KILL_BOTH else []
            since = time.monotonic()
            for process in [self.coordinator, *victims]:
                process.kill()
                process.wait()
            if self.dice.random() < 0.5:
                time.sleep(self.dice.uniform(0, patience / 2))
            self.coordinate()
            if victims:
                self.measure(what, since, [worker.who for worker in victims])
            else:
                self.measure(what, since)
            return 1 + len(victims)
        victims = self.victims(2 if what == KILL_TWO else 1, what == KILL_FIRST)
        if len(victims) < (2 if what == KILL_TWO else 1) or len(self.journal.members) - len(victims) < 2:
            return 0
        ids = [worker.who for worker in victims]
        since = time.monotonic()
        if what in (STOP, PAUSE):
            victims[0].send_signal(signal.SIGSTOP)
            held = patience + self.dice.uniform(1, 2) if what == STOP else patience * self.dice.uniform(0.05, 0.6)
            try:
                if what == STOP:
                    self.measure(what, since, ids)
                time.sleep(max(0, since + held - time.monotonic()))
            finally:
                victims[0].send_signal(signal.SIGCONT)
                self.stopped_last = victims[0]
            if what == PAUSE:
                self.measure(what, since + held)
            return 0
        for worker in victims:
            worker.send_signal(signal.SIGTERM if what == LEAVE else signal.SIGKILL)
        if what == LEAVE:
            self.left += victims
            self.measure(what, since, ids)
            return 0
        self.measure(what, since, ids)
        return len(victims)

    def refill(self):
        """Keeps 4 to 6 workers; some losses are made good at once, some later."""
        living = len([worker for worker in self.living() if worker not in self.left])
        while living < WORKERS_MIN or (living < WORKERS_MAX and self.dice.random() < 0.4):
            self.join()
            living += 1

    def train(self):
        """Returns the number of kills."""
        self.coordinate()
        self.wait("a token is written", lambda: os.path.exists(f"{self.folder}/state/token"))
        for _ in range(5):
            self.join()
        self.wait("training begins", lambda: len(self.journal.members) >= WORKERS_MIN and self.journal.applied)
        kills = 0
        while self.coordinator.poll() is None:
            kills += self.disturb()
            self.refill()
            end = time.monotonic() + self.dice.uniform(0.05, 0.5)
            while time.monotonic() < end and self.coordinator.poll() is None:
                self.journal.read()
                time.sleep(0.01)
        return kills

    def check(self):
        """What must hold at the end."""
        if self.coordinator.wait() != 0:
            raise Wrong(f"the coordinator failed: {self.messages(self.coordinator)[-500:]}")
        with open(self.coordinator.path + ".out") as file:
            result = json.load(file)
        for worker in self.workers:
            last = self.messages(worker).splitlines()[-1:]
            is_out = any(line.startswith("put out") for line in last)
            is_late = self.id_of(worker) is None or worker is self.stopped_last or is_out
            if is_late:
                # The job was over when it wanted to join (again), or when it continued: it would wait for a coordinator.
                worker.kill()
            # One that was stopped when the job ended finds nobody. It ends by itself when its coordinator has been away for 12 times the patience.
            is_orphan = any(line.startswith("the coordinator is away") for line in last)
            try:
                code = worker.wait(20 + (12 * self.options.patience if is_orphan else 0))
            except subprocess.TimeoutExpired:
                raise Wrong(f"a worker does not end: {worker.path}") from None
            is_fine = is_late or is_orphan or "the job is over" in self.messages(worker)
            if code not in (0, -signal.SIGKILL) and not is_fine:
                raise Wrong(f"a worker failed ({code}): {worker.path}")
        self.journal.read()
        ledger, counts = result["ledger"], self.journal.counts
        if (ledger["lost"], ledger["repeated"], ledger["done"]) != (0, 0, result["samples"]) or result.get("stopped"):
            raise Wrong(f"samples: {ledger} of {result['samples']}")
        if result.get("started_over") or counts["disagreed"] or counts["gave_up"] or result.get("diverged"):
            raise Wrong(f"{dict(counts)}, {result.get('diverged')}")
        is_synchronous = any(view is not None for _, view, _, _ in self.journal.applied)
        if is_synchronous and len(set(self.journal.finished)) > 1:
            raise Wrong("members end with different replicas")
        losses = [loss for _, _, _, loss in self.journal.applied]
        tenth = max(1, len(losses) // 10)
        first, last = (sum(part) / tenth for part in (losses[:tenth], losses[-tenth:]))
        if not last < first:
            raise Wrong(f"the loss does not fall: {first} to {last}")
        return result

    def close(self, keep):
        for process in [*self.workers, self.coordinator]:
            if process and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        if not keep:
            shutil.rmtree(self.folder)


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))]


def table(events, patience):
    rows = ["| what happened | times | median | 99th percentile | longest | bound |", "|---|--:|--:|--:|--:|---|"]

    def row(name, found, bound):
        if found:
            shown = " | ".join(f"{percentile(found, part):.2f}" for part in (0.5, 0.99, 1.0))
            rows.append(f"| {name} | {len(found)} | {shown} | {bound} |")

    closes = [KILL, KILL_FIRST, KILL_TWO]
    seconds = lambda kinds: [event["seconds"] for event in events if event["what"] in kinds]
    row("**all kills where a socket closes**", seconds(closes), "median 0.5, 99th percentile 2")
    for what in WEIGHTS:
        bound = {STOP: f"patience + 1 = {patience + 1:g}"}.get(what, "")
        row(what, seconds([what]), bound)
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", default="target/release/paceline")
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--epochs", type=float, default=120)
    parser.add_argument("--patience", type=float, default=2.0)
    parser.add_argument("--events", help="append every measured fault to this file, as JSON lines")
    parser.add_argument("--keep-going", action="store_true", help="continue after a run that is wrong")
    options = parser.parse_args()
    options.program = os.path.abspath(options.program)
    kills, runs, wrong, samples, wasted, events, since = 0, 0, [], 0, 0, [], time.monotonic()
    loads = []
    seed = options.seed
    while kills < options.kills:
        recipe = options.recipes[(seed - options.seed) % len(options.recipes)]
        run, problem = Run(options, recipe, seed), None
        try:
            killed = run.train()
            result = run.check()
            samples, wasted = samples + result["samples"], wasted + result["samples_wasted"]
        except Wrong as error:
            problem, killed = error, 0
        finally:
            run.close(keep=problem is not None)
        kills, runs, seed = kills + killed, runs + 1, seed + 1
        events += run.events
        loads.append(os.getloadavg()[0])
        worst = max((event["seconds"] for event in run.events), default=0)
        text = f"seed {run.seed}, {recipe}: {killed} kills, {len(run.events)} faults, longest wait {worst:.2f} s, {kills} kills so far"
        print(text + (f"  WRONG: {problem} ({run.folder})" if problem else ""), flush=True)
        if options.events:
            with open(options.events, "a") as file:
                for event in run.events:
                    file.write(json.dumps({"seed": run.seed, **event}) + "\n")
        if problem:
            wrong.append(problem)
            if not options.keep_going:
                break
    print(f"\n{kills} kills in {runs} runs of {len(set(options.recipes))} recipes, {time.monotonic() - since:.0f} s; {samples:,} samples applied, "
          f"{wasted:,} computed again; runs that were wrong: {len(wrong)}; load of the machine "
          f"{min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores\n")
    print(table(events, options.patience))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
