"""Shared by all tests: a test that hangs is killed, and tests that need PyTorch are skipped without it."""

import faulthandler
import importlib.util
import os
import signal
from collections.abc import Iterator

import pytest

# Some virtual machines announce AMX and cannot run it: PyTorch dies of an illegal instruction in 16 bits, with Paceline and without.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

# A shell ignores Ctrl-C for what it runs in the background, and so would the processes that are tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Nothing may take longer than this; a hang is a failure.
SECONDS_MAX = float(os.environ.get("PACELINE_TEST_SECONDS", "600"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("torch") is None:
        for item in items:
            if "torch" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="PyTorch is not installed"))


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """Ends the whole process with a traceback of all threads if a test hangs."""
    faulthandler.dump_traceback_later(SECONDS_MAX, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["torch_*.py", "test_torch_*.py"]
