"""The generators of random numbers of this process, saved and restored: workers that share a process take turns with them."""

import random
import sys
from typing import Any

__all__ = ["restore", "save"]


def save() -> dict[str, Any]:
    """The states of Python's, numpy's and PyTorch's generators, as far as they are imported."""
    states: dict[str, Any] = {"random": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    if "torch" in sys.modules:
        states["torch"] = sys.modules["torch"].random.get_rng_state()
    return states


def restore(states: dict[str, Any]) -> None:
    """Continues with saved states."""
    random.setstate(states["random"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])
    if "torch" in states:
        sys.modules["torch"].random.set_rng_state(states["torch"])
