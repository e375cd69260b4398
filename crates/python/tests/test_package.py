"""The package itself: what importing costs, its command line, its errors."""

import os
import subprocess
import sys
import time
from pathlib import Path

import paceline
import pytest


def run(*arguments: str, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)


def test_importing_imports_neither_torch_nor_numpy_and_is_fast() -> None:
    code = (
        "import sys, time; t = time.process_time(); import paceline; took = time.process_time() - t; "
        "assert not {'torch', 'numpy', 'jax'} & set(sys.modules), sorted(sys.modules); print(took)"
    )
    took = min(float(run("-c", code).stdout) for _ in range(3))
    assert took < 0.2


def test_the_wheel_has_the_whole_command_line() -> None:
    assert run("-m", "paceline", "--version").stdout.strip() == f"paceline {paceline.__version__}"
    assert "lb-bsp" in run("-m", "paceline", "strategies").stdout


def test_the_command_line_has_the_exit_codes_of_the_program() -> None:
    refused = run("-m", "paceline", "simulate", "uniform", "--strategy", "nosuch")
    assert refused.returncode == 2
    assert "there is no strategy `nosuch`" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert run("-m", "paceline", "--nosuch").returncode == 2


def test_worker_processes_of_the_command_line_are_started_with_this_python(tmp_path: Path) -> None:
    done = run("-m", "paceline", "train", "--processes", "2", "--epochs", "1", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"lost":0' in done.stdout.replace(" ", "")


@pytest.mark.processes
@pytest.mark.parametrize("flags", [[], ["--restart"]])
def test_sigterm_is_passed_on_to_the_program_of_a_worker(flags: list[str], tmp_path: Path) -> None:
    token = _token(tmp_path)
    # The program takes a moment to leave, says so, and ends with its own exit code.
    program = "trap 'sleep 0.3; echo left; exit 3' TERM; echo ready $$; while :; do sleep 0.05; done"
    command = [sys.executable, "-m", "paceline", "join", "127.0.0.1:9", "--token", token, *flags, "--", "sh", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        ready, pid = child.stdout.readline().split()
        assert ready == "ready"
        child.terminate()
        try:
            out, errors = child.communicate(timeout=20)
        finally:
            child.kill()
    assert (out, child.returncode) == ("left\n", 3), errors
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def _token(folder: Path) -> str:
    """A token as a coordinator makes it."""
    command = [sys.executable, "-m", "paceline", "coordinate", "--workers", "2", "--listen", "127.0.0.1:0", "--state", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as coordinator:
        until = time.monotonic() + 30.0
        while not (folder / "token").exists() and time.monotonic() < until:
            time.sleep(0.05)
        coordinator.kill()
    return (folder / "token").read_text().strip()


def test_errors_are_of_the_packages_own_types() -> None:
    assert issubclass(paceline.Refused, paceline.PacelineError)
    assert issubclass(paceline.Refused, ValueError)
    assert not issubclass(paceline.Lost, ValueError)


def test_an_unprepared_worker_says_what_to_call() -> None:
    worker = paceline.join()
    with pytest.raises(paceline.Refused, match=r"call worker\.prepare"):
        worker.status()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_max": 0}, "batch_max = 0: give a whole number above zero"),
        ({"batch_max": 4, "batch_fixed": 4}, "batch_max and batch_fixed both say"),
    ],
)
def test_bad_arguments_of_join_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(paceline.Refused, match=message):
        paceline.join(**arguments)  # type: ignore[arg-type]
