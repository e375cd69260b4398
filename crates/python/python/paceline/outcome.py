"""What a run ended with."""

import json
import math
from dataclasses import dataclass, field
from typing import Any

from . import _paceline

__all__ = ["Outcome"]


@dataclass
class Outcome:
    """What a run ended with. `result` has every figure that the command line prints with `--json`."""

    result: dict[str, Any]
    #: The parameters of the model that would be deployed: float32, behind the buffer protocol.
    params: Any = field(default=None, repr=False)
    #: What `main` returned, for each worker that ended in good order.
    returned: dict[int, Any] = field(default_factory=dict, repr=False)

    @property
    def strategy(self) -> str:
        """The strategy's name."""
        return str(self.result["strategy"])

    @property
    def samples(self) -> int:
        """How many samples were applied."""
        return int(self.result["samples"])

    @property
    def loss(self) -> float | None:
        """The training loss at the end, smoothed; `None` if no loss was reported."""
        return _number(self.result["loss"]) or None

    @property
    def accuracy(self) -> float | None:
        """The accuracy on the test set; `None` if there is none."""
        return _number(self.result["accuracy"])

    @property
    def seconds(self) -> float:
        """How long the run took: virtual seconds if it was simulated."""
        virtual = self.result.get("virtual_seconds")
        return float(virtual if virtual is not None else self.result.get("real_seconds") or 0.0)

    @property
    def utilization(self) -> float:
        """The part of their time in which the workers computed, on average."""
        parts = self.result["utilization"]
        return float(sum(parts) / max(1, len(parts)))

    @property
    def journal_hash(self) -> str:
        """Equal runs have equal hashes."""
        return str(self.result["journal_hash"])

    @property
    def diverged(self) -> str | None:
        """Why the run was ended as diverged, if it was."""
        reason = self.result.get("diverged")
        return None if reason is None else str(reason)

    @classmethod
    def of(cls, ended: _paceline.Outcome) -> "Outcome":
        """Reads what the engine returned."""
        return cls(json.loads(ended.json), ended.params)


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
