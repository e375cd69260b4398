#!/usr/bin/env python3
"""Kills coordinators whose state is in etcd, and has their standbys take over, until a given number has been killed.

Each run trains one recipe with two processes of `paceline coordinate --state etcd://...`, of which one waits, and three workers, over TLS on the
loopback device; etcd is a real one, of one server. Until the run ends, the active coordinator is killed (kill -9); in some turns it is stopped
instead until its standby serves, and continued: it must end and say why; and in some, etcd is killed and started again some seconds later.
After each, a new standby is started. One worker is started in mid-run with the address of a coordinator that is dead. A run counts as wrong if it
does not end, if a sample is lost or repeated, if training starts over, or if the loss does not fall.

    .ci/standby                             # installs etcd, builds the program, and runs this file
"""

import argparse
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

RECIPES = ["ssgd", "async", "easgd", "abs", "gossip-pull", "lb-bsp"]
EPOCHS = {"ssgd": 3000, "abs": 3000, "lb-bsp": 3000, "async": 400, "easgd": 400, "gossip-pull": 400}
STUCK = 60.0
KILL, FREEZE, ETCD = "kill -9 of the active coordinator", "SIGSTOP until its lease is gone, SIGCONT", "kill -9 of etcd, back after 3 s"
FAULTS = {"kill": (10, KILL), "freeze": (2, FREEZE), "etcd": (1, ETCD)}
WAITS = "this one is its standby"
SERVES = "on each new machine type:"
TAKEN_OVER = "has taken over the job, and what this one had not stored does not count"


class Wrong(Exception):
    """Something that must hold does not."""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait(what, is_so, limit=STUCK, pause=0.005):
    end = time.monotonic() + limit
    while True:
        found = is_so()
        if found:
            return found
        if time.monotonic() > end:
            raise Wrong(f"not within {limit} s: {what}")
        time.sleep(pause)


class Etcd:
    def __init__(self, program):
        self.folder = tempfile.mkdtemp(prefix="paceline-etcd-")
        self.program, (self.port, peer) = program, (free_port(), free_port())
        here = f"http://127.0.0.1:{self.port}"
        self.arguments = ["--data-dir", f"{self.folder}/data", "--listen-client-urls", here, "--advertise-client-urls", here,
                          "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--auto-compaction-retention", "1h"]
        self.start()

    def start(self):
        with open(f"{self.folder}/log", "ab") as log:
            self.process = subprocess.Popen([self.program, *self.arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait("etcd answers", self.answers)

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1):
                return True
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        shutil.rmtree(self.folder)


class Process:
    def __init__(self, program, arguments, path, folder):
        self.path = path
        with open(path + ".out", "wb") as out, open(path + ".err", "wb") as err:
            self.child = subprocess.Popen([program, *arguments], stdout=out, stderr=err, stdin=subprocess.DEVNULL, cwd=folder)

    def messages(self):
        with open(self.path + ".err") as file:
            return file.read()

    def runs(self):
        return self.child.poll() is None

    def kill(self):
        self.child.kill()
        self.child.wait()


class Run:
    def __init__(self, options, etcd, recipe, seed):
        self.options, self.etcd, self.recipe = options, etcd, recipe
        self.dice = random.Random(seed)
        self.folder = tempfile.mkdtemp(prefix="paceline-standby-")
        self.name, self.started = f"run-{os.getpid()}-{seed}", 0
        self.ports = [free_port(), free_port()]
        self.active, self.standby, self.workers, self.ended = None, None, [], []
        self.events = []

    def start(self, name, arguments):
        self.started += 1
        return Process(self.options.program, arguments, f"{self.folder}/{name}-{self.started}", self.folder)

    def coordinate(self, port):
        o = self.options
        # The copy of an earlier life would be taken for the new one's.
        if os.path.exists(f"{self.place(port)}/journal.jsonl"):
            os.remove(f"{self.place(port)}/journal.jsonl")
        process = self.start("coordinator", [
            "coordinate", "--strategy", self.recipe, "--workers", "3:4", "--listen", f"127.0.0.1:{port}", "--model", "softmax", "--data", "blobs",
            "--state", f"etcd://127.0.0.1:{self.etcd.port}/{self.name}", "--authority", f"{self.folder}/authority.pem",
            "--checkpoints", f"{self.folder}/checkpoints", "--checkpoint-rounds", "500", "--patience", str(o.patience),
            "--epochs", str(EPOCHS[self.recipe] * o.length), "--json", "--no-report"])
        process.port = port
        return process

    def place(self, port):
        return f"{self.folder}/paceline-runs/{self.name}-{port}"

    def join(self, port):
        """A worker that is told one address only; the others are in its token."""
        token = f"{self.place(self.active.port)}/token"
        self.workers.append(self.start("worker", ["join", f"127.0.0.1:{port}", "--token-file", token]))

    def serves(self, process):
        if not process.runs():
            raise Wrong(f"a coordinator ended: {process.messages()[-500:]}")
        try:
            with socket.create_connection(("127.0.0.1", process.port), 1):
                return True
        except OSError:
            return False

    def moves_on(self, process):
        """Whether the journal of a coordinator has samples that were applied after it took over."""
        try:
            with open(f"{self.place(process.port)}/journal.jsonl", "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - (256 << 10)))
                text = file.read()
        except FileNotFoundError:
            return False
        # If it is further back than that, much has been applied since.
        at = text.rfind(b'"record":"restarted"')
        return (at >= 0 or size > 256 << 10) and b'"record":"applied"' in text[max(at, 0):]

    def is_over(self):
        return not self.active.runs() and self.active.child.returncode == 0

    def is_ready(self):
        return self.is_over() or WAITS in self.standby.messages()

    def take_over(self, what, since, before):
        wait(f"the standby serves after {what}", lambda: self.serves(self.standby), pause=0.002)
        serves = time.monotonic() - since
        self.active, self.standby = self.standby, None
        # A job that ended in the meantime has no more samples.
        wait(f"samples are applied after {what}", lambda: self.moves_on(self.active) or not self.active.runs(), pause=0.02)
        self.events.append({"recipe": self.recipe, "what": what, "serves": serves, "applied": time.monotonic() - since})
        if what == FREEZE:
            before.child.send_signal(signal.SIGCONT)
            wait("the coordinator that was stopped ends", lambda: not before.runs(), 20)
            said = before.messages().strip().splitlines()[-1]
            if before.child.returncode != 1 or TAKEN_OVER not in said:
                raise Wrong(f"it ended with {before.child.returncode} and said: {said}")
        self.standby = self.coordinate(before.port)

    def disturb(self):
        """One fault; returns how many coordinators were killed."""
        weights = [FAULTS[name] for name in self.options.faults]
        _, what = self.dice.choices(weights, [weight for weight, _ in weights])[0]
        since = time.monotonic()
        if what == ETCD:
            self.etcd.kill()
            time.sleep(3)
            self.etcd.start()
            # Whether the lease has outlived the pause is etcd's business: one of the two is active.
            def goes_on():
                if not self.active.runs() and not self.is_over():
                    self.active, self.standby = self.standby, self.coordinate(self.active.port)
                return self.is_over() or (self.serves(self.active) and self.grows())
            wait("the journal goes on after etcd is back", goes_on, pause=0.1)
            self.events.append({"recipe": self.recipe, "what": what, "serves": None, "applied": time.monotonic() - since})
            wait("there is a standby", self.is_ready, pause=0.02)
            return 0
        before = self.active
        if what == KILL:
            before.kill()
            if before.child.returncode != -signal.SIGKILL:
                self.active = before
                return 0
            self.ended.append(before)
        else:
            before.child.send_signal(signal.SIGSTOP)
            time.sleep(0.1)
            if not before.runs():
                return 0
        self.take_over(what, since, before)
        return 1 if what == KILL else 0

    def grows(self):
        """Whether the journal has grown since this was asked last."""
        try:
            size = os.path.getsize(f"{self.place(self.active.port)}/journal.jsonl")
        except FileNotFoundError:
            return False
        last, self.size = getattr(self, "size", None), (self.active.port, size)
        return last is not None and last[0] == self.active.port and size > last[1]

    def train(self):
        """Returns the number of kills."""
        self.active = self.coordinate(self.ports[0])
        wait("the coordinator serves", lambda: self.serves(self.active))
        wait("the token is written", lambda: os.path.exists(f"{self.place(self.ports[0])}/token"))
        self.standby = self.coordinate(self.ports[1])
        wait("the token names both", lambda: "a standby waits at" in self.active.messages())
        for _ in range(3):
            self.join(self.ports[0])
        journal = f"{self.place(self.ports[0])}/journal.jsonl"
        wait("training begins", lambda: os.path.exists(journal) and b'"record":"applied"' in open(journal, "rb").read())
        kills = 0
        while not self.is_over():
            wait("there is a standby", self.is_ready, pause=0.02)
            if self.is_over():
                break
            killed = self.disturb()
            kills += killed
            if killed and len(self.workers) < 4:
                # The one that was killed does not listen, and who is started there waits.
                self.join(self.standby.port)
            end = time.monotonic() + self.dice.uniform(0.05, 1.0)
            while time.monotonic() < end and not self.is_over():
                time.sleep(0.01)
            if not self.active.runs() and not self.is_over():
                raise Wrong(f"a coordinator ended: {self.active.messages()[-500:]}")
        return kills

    def check(self):
        """What must hold at the end, and what both coordinators say."""
        results = []
        for process in [self.active, self.standby]:
            wait("the coordinators end", lambda: not process.runs(), 60)
            if process.child.returncode != 0:
                raise Wrong(f"a coordinator failed: {process.messages()[-500:]}")
            with open(process.path + ".out") as file:
                results.append(json.load(file))
        for worker in self.workers:
            wait("the workers end", lambda: not worker.runs(), 60)
            if worker.child.returncode != 0:
                raise Wrong(f"a worker failed: {worker.path}: {worker.messages()[-500:]}")
        for result in results:
            ledger = result["ledger"]
            if (ledger["lost"], ledger["repeated"], ledger["done"]) != (0, 0, result["samples"]) or result.get("stopped"):
                raise Wrong(f"samples: {ledger} of {result['samples']}")
            if result.get("started_over") or result.get("diverged"):
                raise Wrong(f"started over {result.get('started_over')} times, {result.get('diverged')}")
        if results[0]["samples"] != results[1]["samples"]:
            raise Wrong("the coordinators count different samples")
        return results[0]

    def close(self, keep):
        for process in [*self.workers, self.active, self.standby]:
            if process and process.runs():
                process.child.send_signal(signal.SIGCONT)
                process.kill()
        if not keep:
            shutil.rmtree(self.folder)


def shown(values):
    values = sorted(value for value in values if value is not None)
    if not values:
        return "- | -"
    return f"{values[len(values) // 2]:.2f} | {values[-1]:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", default="target/release/paceline")
    parser.add_argument("--etcd", default="etcd")
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--length", type=float, default=1, help="how long runs are")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--patience", type=float, default=1)
    options = parser.parse_args()
    options.program = os.path.abspath(options.program)
    etcd = Etcd(options.etcd)
    kills, runs, samples, wasted, events, since = 0, 0, 0, 0, [], time.monotonic()
    try:
        while kills < options.kills:
            recipe = options.recipes[runs % len(options.recipes)]
            run = Run(options, etcd, recipe, options.seed + runs)
            wrong = True
            try:
                killed = run.train()
                result = run.check()
                wrong = False
            except Wrong as error:
                print(f"WRONG: {recipe}, seed {options.seed + runs}: {error}; see {run.folder}", flush=True)
                sys.exit(1)
            finally:
                run.close(wrong)
            kills, runs, events = kills + killed, runs + 1, events + run.events
            samples, wasted = samples + result["samples"], wasted + result["samples_wasted"]
            print(f"{recipe}: {killed} kills, {result['samples']:,} samples, {result['samples_wasted']:,} computed again, accuracy "
                  f"{result.get('accuracy')}, load {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        etcd.close()
    print(f"\n{kills} kills in {runs} runs, {time.monotonic() - since:.0f} s; {samples:,} samples, {wasted:,} computed again; 0 lost, 0 repeated\n")
    print("| what happened | times | standby serves, median s | longest | samples applied again, median s | longest |\n|---|--:|--:|--:|--:|--:|")
    for what in [KILL, FREEZE, ETCD]:
        found = [event for event in events if event["what"] == what]
        if found:
            both = [shown([event[key] for event in found]) for key in ("serves", "applied")]
            print(f"| {what} | {len(found)} | {both[0]} | {both[1]} |")


if __name__ == "__main__":
    main()
