"""Torch workers that are killed, asked to leave, and joined by others at random: is every sample learned once?

    python bench/python/churn.py --seeds 200          # short jobs of all strategies, each with its own disturbances
    python bench/python/churn.py --minutes 15         # one job that is disturbed all the time

Counted from what the data set was asked for and from what the journal says was applied: every position of the job must be applied
exactly once, and its sample must have been read. PyTorch is imported once, and workers are forked.
"""

import argparse
import array
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paceline
import paceline.host  # noqa: F401  (here, and in the next line, so that forked workers need not import it)
import torch
import torch._dynamo
import torch.nn.functional as F
from paceline import _paceline
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, BATCH = 240, 8
WAIT = 120.0


class Counted(Dataset[Any]):
    """Noise whose readers are written down: a worker that is killed has still said what it read."""

    def __init__(self, folder: Path) -> None:
        self.file = os.open(folder / f"read-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        os.write(self.file, index.to_bytes(4, "little"))
        dice = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=dice), torch.tensor(index % 4)


class Job:
    """A coordinator, and the workers that were forked for it."""

    def __init__(self, folder: Path, strategy: str, epochs: float, workers: int, pause: float, seed: int) -> None:
        self.folder, self.pause = folder, pause
        command = [sys.executable, "-m", "paceline", "coordinate", "--model", "own", "--data", "own", "--strategy", strategy]
        command += ["--batch", str(BATCH), "--epochs", str(epochs), "--workers", f"{workers}:", "--seed", str(seed), "--json", "--no-report"]
        command += ["--listen", "127.0.0.1:0", "--state", str(folder / "state"), "--patience", "5"]
        self.out = (folder / "out").open("w+")
        self.errors = (folder / "errors").open("w+")
        self.coordinator = subprocess.Popen(command, stdout=self.out, stderr=self.errors)
        self.living: list[int] = []
        self.codes: dict[int, int] = {}
        self.started_over = 0
        self.address = self._until(self._listens)

    def _listens(self) -> str | None:
        found = re.search(r"paceline join (127\.0\.0\.1:\d+)", (self.folder / "errors").read_text() + (self.folder / "out").read_text())
        return found.group(1) if found and (self.folder / "state" / "token").exists() else None

    def _until(self, happens: Any) -> Any:
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            found = happens()
            if found:
                return found
            time.sleep(0.01)
        raise SystemExit(f"nothing happened for {WAIT} s; see {self.folder}")

    def join(self) -> None:
        """Forks a worker."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                log = os.open(self.folder / f"worker-{os.getpid()}", os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.environ |= {"PACELINE_JOIN": self.address, "PACELINE_TOKEN": (self.folder / "state" / "token").read_text().strip()}
                train(self.folder, self.pause)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        self.living.append(pid)

    def reap(self) -> None:
        """Forgets workers that have ended."""
        for pid in list(self.living):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.living.remove(pid)
                self.codes[pid] = os.waitstatus_to_exitcode(status)

    def disturb(self, dice: random.Random) -> str:
        """Kills a worker, asks one to leave, or has one join."""
        self.reap()
        kind = dice.choice(("kill", "leave", "join")) if len(self.living) > 1 else "join"
        if kind == "join" and len(self.living) >= 6:
            kind = "kill"
        if kind == "join":
            self.join()
        else:
            os.kill(dice.choice(self.living), signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        return kind

    def is_over(self) -> bool:
        return self.coordinator.poll() is not None

    def end(self) -> None:
        """Ends what is left."""
        for pid in self.living:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if self.coordinator.poll() is None:
            self.coordinator.kill()
            self.coordinator.wait()

    def findings(self, total: int, seed: int) -> list[str]:
        """What is wrong."""
        found = [] if self.coordinator.returncode == 0 else [f"the coordinator ended with {self.coordinator.returncode}"]
        text = (self.folder / "out").read_text()
        result = json.loads(text[text.index("{") :]) if "{" in text else {}
        ledger = result.get("ledger")
        if ledger != {"done": total, "lost": 0, "repeated": 0}:
            found.append(f"the ledger is {ledger} instead of {total} samples")
        applied: Counter[int] = Counter()
        center: list[tuple[int, list[int]]] = []
        for line in (self.folder / "state" / "journal.jsonl").read_text().splitlines():
            record = json.loads(line)
            if record["record"] == "applied":
                positions = [at for start, end in record["spans"] for at in range(start, end)]
                applied.update(positions)
                center.append((record["version"], positions))
            elif record["record"] == "restored":
                # The center's host has died: what was applied after the copy that another one had is free again.
                for _, positions in (one for one in center if one[0] > record["version"]):
                    applied.subtract(positions)
                center = [one for one in center if one[0] <= record["version"]]
            elif record["record"] == "started_over":
                # The only replica has died: what was applied to it is free again.
                applied.clear()
                self.started_over += 1
        odd = [at for at in range(total) if applied[at] != 1]
        if odd or len(applied) != total:
            found.append(f"the journal applies {len(odd)} positions not once, first {odd[:5]}")
        order = _paceline.Order(seed, SAMPLES, True)
        wanted = Counter(index for _, index in order.at([(0, total)]))
        read: Counter[int] = Counter()
        for path in self.folder.glob("read-*"):
            read.update(array.array("I", path.read_bytes()[: path.stat().st_size // 4 * 4]))
        unread = [index for index, count in wanted.items() if read[index] < count]
        if unread:
            found.append(f"{len(unread)} samples were read less often than they were applied, first {unread[:5]}")
        bad = {pid: code for pid, code in self.codes.items() if code not in (0, -signal.SIGKILL, -signal.SIGTERM)}
        if bad:
            found.append(f"workers ended with {bad}")
        self.reads = sum(read.values())
        return found


def train(folder: Path, pause: float) -> None:
    """The loop of a worker."""
    torch.set_num_threads(1)
    worker = paceline.join()
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.5)
    model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(Counted(folder), batch_size=BATCH, shuffle=True))
    for _ in worker.epochs():
        for step in loader.steps():
            for x, y in step:
                time.sleep(pause)
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    worker.close()


def short_jobs(seeds: Iterator[int], folder: Path) -> int:
    """One job for each seed; returns how many were wrong."""
    recipes = [name for name, *_ in _paceline.recipes()]
    wrong, samples, reads, kinds, over = 0, 0, 0, Counter[str](), 0
    since = time.monotonic()
    for seed in seeds:
        dice = random.Random(seed)
        strategy, epochs = recipes[seed % len(recipes)], dice.choice((4.0, 6.0, 9.5))
        place = folder / str(seed)
        place.mkdir()
        first = dice.randint(2, 4)
        job = Job(place, strategy, epochs, 1, 0.015, seed)
        try:
            for _ in range(first):
                job.join()
            for _ in range(dice.randint(1, 4)):
                time.sleep(dice.uniform(0.05, 0.5))
                if job.is_over():
                    break
                kinds[job.disturb(dice)] += 1
            end = time.monotonic() + WAIT
            while not job.is_over() and time.monotonic() < end:
                job.reap()
                if not job.living:
                    job.join()
                time.sleep(0.02)
            waits = time.monotonic() + 10.0
            while job.living and time.monotonic() < waits:
                job.reap()
                time.sleep(0.02)
            found = [] if job.is_over() else [f"not over after {WAIT} s"]
        finally:
            # One that was started after the job's end waits for a coordinator for half a minute.
            left = [pid for pid in job.living if "joined as worker" in (place / f"worker-{pid}").read_text()]
            job.end()
        found += [f"workers {left} did not end"] if left else []
        total = round(epochs * SAMPLES)
        found += job.findings(total, seed)
        samples, reads, over = samples + total, reads + job.reads, over + job.started_over
        if found:
            wrong += 1
            print(f"seed {seed}, {strategy}: {'; '.join(found)} ({place})", flush=True)
        else:
            shutil.rmtree(place)
    told = ", ".join(f"{count} {kind}s" for kind, count in sorted(kinds.items()))
    print(f"{wrong} wrong; {samples} samples applied, {reads} read; {told}; started over {over} times, because the only replica died; {time.monotonic() - since:.0f} s, load average {os.getloadavg()[0]:.0f}")
    return wrong


def long_job(minutes: float, strategy: str, folder: Path) -> int:
    """One job that is disturbed about every second; returns 1 if it was wrong."""
    dice, seed, kinds = random.Random(1), 1, Counter[str]()
    epochs = 1e5
    job = Job(folder, strategy, epochs, 1, 0.01, seed)
    begun = time.monotonic()
    longest = 0.0
    try:
        for _ in range(4):
            job.join()
        journal = folder / "state" / "journal.jsonl"
        size, changed = 0, time.monotonic()
        next_disturbance = time.monotonic() + 3.0
        while time.monotonic() < begun + 60.0 * minutes and not job.is_over():
            time.sleep(0.05)
            now = time.monotonic()
            if journal.exists() and journal.stat().st_size != size:
                longest = max(longest, now - changed if size else 0.0)
                size, changed = journal.stat().st_size, now
            if now > next_disturbance:
                kinds[job.disturb(dice)] += 1
                next_disturbance = now + dice.uniform(0.3, 2.0)
            job.reap()
            if now > changed + WAIT:
                print(f"nothing was written to the journal for {WAIT} s ({folder})")
                return 1
        job.coordinator.terminate()
        job.coordinator.wait(60)
        waits = time.monotonic() + 20.0
        while job.living and time.monotonic() < waits:
            job.reap()
            time.sleep(0.05)
        left = len(job.living)
    finally:
        job.end()
    text = (folder / "out").read_text()
    result = json.loads(text[text.index("{") : text.rindex("}") + 1]) if "{" in text else {}
    ledger = result.get("ledger") or {}
    applied: Counter[int] = Counter()
    for line in (folder / "state" / "journal.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["record"] == "applied":
            applied.update(at for start, end in record["spans"] for at in range(start, end))
    twice = sum(1 for count in applied.values() if count > 1)
    bad = {pid: code for pid, code in job.codes.items() if code not in (0, -signal.SIGKILL, -signal.SIGTERM)}
    told = ", ".join(f"{count} {kind}s" for kind, count in sorted(kinds.items()))
    print(
        f"{strategy}: {told} in {(time.monotonic() - begun) / 60:.1f} minutes; ledger {ledger}, {twice} positions applied twice, longest silence "
        f"{longest:.1f} s, {left} workers left, exit codes {bad or 'as expected'}; load average {os.getloadavg()[0]:.0f}"
    )
    return int(bool(twice or bad or left or ledger.get("lost") or ledger.get("repeated")))


def main() -> int:
    """Returns the exit code."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seeds", type=int, default=200)
    arguments.add_argument("--first", type=int, default=0)
    arguments.add_argument("--minutes", type=float)
    arguments.add_argument("--strategy", default="dbs")
    given = arguments.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    folder = Path(tempfile.mkdtemp(prefix="churn-"))
    if given.minutes:
        wrong = long_job(given.minutes, given.strategy, folder)
    else:
        wrong = short_jobs(iter(range(given.first, given.first + given.seeds)), folder)
    if not wrong:
        shutil.rmtree(folder)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
