"""Launchers whose environment says how many processes a job has: torchrun, Slurm, Open MPI and others that speak PMI.

The first process runs the coordinator. Its address and its token go through a folder that only the user can read, never through a
store that anybody on the network can: on one machine a temporary folder, on several one that they share.
"""

import hashlib
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import PacelineError, Refused

__all__ = ["Launched", "find_launcher"]

#: How long the first process is waited for.
_WAIT = 300.0


@dataclass
class Launched:
    """What a launcher says about this process."""

    rank: int
    size: int
    is_one_machine: bool
    #: The host of the first process, as others reach it.
    host: str
    #: Names this launch, so that two at the same time do not meet.
    key: str
    folder: str | None = None
    #: Slow starts are usual: model files are read, modules imported.
    patience: float = 10.0

    @property
    def listen(self) -> str:
        """Where the coordinator listens."""
        return "127.0.0.1:0" if self.is_one_machine else "0.0.0.0:0"

    def state(self) -> Path:
        """The folder through which the processes find each other."""
        if self.folder is not None:
            return Path(self.folder) / self.key
        if not self.is_one_machine:
            raise Refused(
                "the processes of this launch are on several machines: set PACELINE_STATE to a folder that they share and only you can "
                "read; the job's token goes through it"
            )
        return Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}" / self.key

    def make_state(self) -> Path:
        """Makes the folder, empty, for this user alone."""
        state = self.state()
        state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir(mode=0o700)
        self._check(state)
        return state

    def tell(self, port: int) -> None:
        """Tells the other processes where the coordinator is."""
        host = "127.0.0.1" if self.is_one_machine else self.host
        aside = self.state() / "address.new"
        aside.write_text(f"{host}:{port}\n")
        aside.rename(self.state() / "address")

    def find(self) -> tuple[str, str]:
        """The coordinator's address and token; waits for the first process."""
        state, until = self.state(), time.monotonic() + _WAIT
        while time.monotonic() < until:
            try:
                address = (state / "address").read_text().strip()
                token = (state / "token").read_text()
                if address and token.endswith("\n"):
                    self._check(state)
                    return address, token.strip()
            except FileNotFoundError:
                pass
            time.sleep(0.05)
        raise PacelineError(f"the first process of this launch has not begun a job within {_WAIT:.0f} s; see its output")

    def clean_up(self) -> None:
        """Removes a temporary folder."""
        if self.rank == 0 and self.folder is None:
            shutil.rmtree(self.state(), ignore_errors=True)

    def _check(self, state: Path) -> None:
        status = state.stat()
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise Refused(f"{state} is not only yours: the job's token must not be read by others; set PACELINE_STATE to a private folder")


def find_launcher(environment: Mapping[str, str]) -> Launched | None:
    """What the environment says; `None` if this process was started alone."""

    def number(name: str, default: int = 0) -> int:
        try:
            return int(environment.get(name, ""))
        except ValueError:
            return default

    folder = environment.get("PACELINE_STATE")
    host = environment.get("MASTER_ADDR", socket.gethostname())

    def launched(rank: str, size: str, is_one: bool, *names: str) -> Launched | None:
        if number(size) < 2 or rank not in environment:
            return None
        parts = [environment.get(name, "") for name in names]
        key = hashlib.blake2b("/".join(parts).encode(), digest_size=8).hexdigest()
        return Launched(number(rank), number(size), is_one, host, key, folder)

    # torchrun, and others that set what PyTorch reads.
    if "RANK" in environment and "WORLD_SIZE" in environment:
        is_one = number("LOCAL_WORLD_SIZE", -1) == number("WORLD_SIZE")
        names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
        return launched("RANK", "WORLD_SIZE", is_one, *names)
    if "SLURM_PROCID" in environment:
        is_one = number("SLURM_STEP_NUM_NODES", number("SLURM_NNODES", 2)) == 1
        size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
        return launched("SLURM_PROCID", size, is_one, "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    if "OMPI_COMM_WORLD_RANK" in environment:
        is_one = number("OMPI_COMM_WORLD_LOCAL_SIZE", -1) == number("OMPI_COMM_WORLD_SIZE")
        return launched("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", is_one, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
    if "PMI_RANK" in environment:
        is_one = number("MPI_LOCALNRANKS", -1) == number("PMI_SIZE")
        return launched("PMI_RANK", "PMI_SIZE", is_one, "PMI_FD", "PMI_ID", "PMI_PORT")
    return None
