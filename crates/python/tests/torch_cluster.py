"""Starts coordinators and workers as processes, and reads what they say."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
#: Importing PyTorch in four processes of a busy machine takes a minute.
SECONDS = 180.0


class Process:
    """A process whose output is read as it comes."""

    def __init__(self, command: list[str], environment: "dict[str, str] | None" = None) -> None:
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | (environment or {})
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env, cwd=HERE)
        self.pid = self.child.pid
        #: The file for which it waits before it joins.
        self.go: Path | None = None
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self.child.stdout, self.lines), daemon=True),
            threading.Thread(target=self._read, args=(self.child.stderr, self.errors), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        for line in stream:
            lines.append(line.rstrip("\n"))

    def said(self, what: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in list(self.lines) if line.startswith("{")]
        return [line for line in found if line.get("what") == what]

    def until(self, happens: Callable[[], Any], seconds: float = SECONDS) -> Any:
        """Waits until something has happened."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = happens()
            if found:
                return found
            if self.child.poll() is not None:
                time.sleep(0.2)
                found = happens()
                if found:
                    return found
                raise AssertionError(f"it ended with {self.child.returncode}: {self.told()}")
            time.sleep(0.02)
        raise AssertionError(f"it did not happen within {seconds} s: {self.told()}")

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = SECONDS) -> int:
        code = self.child.wait(seconds)
        for reader in self._readers:
            reader.join(5.0)
        return code

    def told(self) -> str:
        return "\n".join([*self.lines[-20:], "---", *self.errors[-30:]])

    def end(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()


class Cluster:
    """A coordinator and workers on this machine; everything ends with it."""

    def __init__(self, folder: Path, workers: str, *flags: str, epochs: float = 5.0, strategy: str = "ssgd", batch: int | None = 8) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.out.mkdir()
        command = [sys.executable, "-m", "paceline", "coordinate", "--model", "own", "--data", "own", "--workers", workers]
        command += ["--listen", "127.0.0.1:0", "--state", str(folder / "state"), "--epochs", str(epochs), "--strategy", strategy]
        command += [*([] if batch is None else ["--batch", str(batch)]), "--json", *flags]
        self.coordinator = Process(command)
        self.processes = [self.coordinator]
        line = self.coordinator.until(self._invitation)
        self.address = line.group(1)
        self.token = folder / "state" / "token"

    def _invitation(self) -> "re.Match[str] | None":
        text = "\n".join([*self.coordinator.lines, *self.coordinator.errors])
        return re.search(r"paceline join (127\.0\.0\.1:\d+)", text)

    def join(self, options: "dict[str, Any] | None" = None, *flags: str) -> Process:
        """Starts a worker through `paceline join ... -- python`."""
        go = self.folder / f"go{len(self.processes)}"
        command = [sys.executable, "-m", "paceline", "join", self.address, "--token-file", str(self.token), *flags, "--"]
        command += [sys.executable, "cluster_train.py", str(self.out), json.dumps({"waits_for": str(go), **(options or {})})]
        worker = Process(command)
        worker.go = go
        self.processes.append(worker)
        return worker

    def begin(self, *workers: Process) -> None:
        """Lets workers join, once all of them have imported what they need."""
        for worker in workers:
            worker.until(lambda worker=worker: worker.said("ready"))  # type: ignore[misc]
        for worker in workers:
            assert worker.go is not None
            worker.go.touch()

    def result(self) -> dict[str, Any]:
        """The coordinator's result."""
        assert self.coordinator.wait() == 0, self.coordinator.told()
        return dict(json.loads("\n".join(self.coordinator.lines)))

    def saved(self) -> list[dict[str, Any]]:
        """What the workers that ended have saved."""
        return [torch.load(path) for path in sorted(self.out.glob("*.pt"))]

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.end()


def pid_of(worker: Process) -> int:
    """The process of the user's program."""
    return int(worker.until(lambda: worker.said("joined"))[0]["pid"])


def kill(worker: Process) -> None:
    os.kill(pid_of(worker), signal.SIGKILL)
