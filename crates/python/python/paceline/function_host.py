"""A worker of a cluster whose gradient is a function: parameters and optimizer are numpy arrays."""

import json
import time
from collections.abc import Callable
from typing import Any

from . import _paceline
from .errors import PacelineError
from .optimizers import SGD, Optimizer
from .place import Place

__all__ = ["FunctionHost"]

#: (parameters, indices) -> (sum of gradients, sum of losses, weight or None)
Gradient = Callable[[Any, list[int]], tuple[Any, float, float | None]]


class FunctionHost:
    """Answers what a worker asks until its job is over."""

    def __init__(self, place: Place, gradient: Gradient, initial: Any, order: _paceline.Order, optimizer: Optimizer) -> None:
        import numpy

        self.params = numpy.array(initial, dtype=numpy.float32)
        self._initial = self.params.copy()
        self._place = place
        self._gradient = gradient
        self._order = order
        self._optimizer = optimizer
        self._slots: list[Any] = []
        self._steps = 0
        self._flat = _paceline.Flat(self.params.size)
        self._array = numpy.frombuffer(memoryview(self._flat), dtype=numpy.float32)

    def run(self, line: _paceline.Line) -> None:
        """Returns when the job is over."""
        while True:
            ask = line.next()
            if ask is None:
                renewed = self._place.renew(line)
                if renewed is None:
                    return
                line = renewed
            elif ask.kind == "compute":
                self._compute(line, ask)
            elif ask.kind == "apply":
                line.mean(self._flat)
                self._step(ask.factor)
                line.done()
            elif ask.kind == "export":
                self._array[:] = self.params
                line.export(self._flat)
            elif ask.kind == "load":
                line.replica(self._flat)
                self.params[:] = self._array
                if ask.state is not None:
                    self._load(bytes(ask.state))
                line.done()
            else:
                line.keep(self._keep())

    def _compute(self, line: _paceline.Line, ask: _paceline.Ask) -> None:
        since = time.perf_counter()
        indices = [index for _, index in self._order.at(ask.spans)]
        read_only = self.params.view()
        read_only.flags.writeable = False
        total, loss, weight = self._gradient(read_only, indices)
        self._array[:] = total
        line.add([(self._flat.address, self.params.size)], 1.0)
        line.computed(self._flat, len(indices), weight, loss, time.perf_counter() - since)

    def _step(self, factor: float) -> None:
        """The formulas of the engine, which are PyTorch's."""
        import numpy

        mean, plan = self._array, self._optimizer
        rate = plan.lr * factor
        self._steps += 1
        if isinstance(plan, SGD):
            along = mean + plan.weight_decay * self.params
            if plan.momentum:
                self._slots = self._slots or [numpy.zeros_like(self.params)]
                self._slots[0] *= plan.momentum
                self._slots[0] += along
                along = along + plan.momentum * self._slots[0] if plan.nesterov else self._slots[0]
            self.params -= (rate * along).astype(numpy.float32)
            return
        self._slots = self._slots or [numpy.zeros_like(self.params) for _ in range(2)]
        first, second = self._slots
        first += (1.0 - plan.betas[0]) * (mean - first)
        second += (1.0 - plan.betas[1]) * (mean * mean - second)
        full = [1.0 - beta**self._steps for beta in plan.betas]
        root = numpy.sqrt(second / full[1]) + plan.eps
        self.params *= 1.0 - rate * plan.weight_decay
        self.params -= (rate / full[0] * first / root).astype(numpy.float32)

    def _keep(self) -> bytes:
        head = json.dumps({"steps": self._steps, "slots": len(self._slots)}).encode()
        return len(head).to_bytes(8, "little") + head + b"".join(slot.tobytes() for slot in self._slots)

    def _load(self, state: bytes) -> None:
        import numpy

        if not state:
            self._slots, self._steps = [], 0
            return
        try:
            length = int.from_bytes(state[:8], "little")
            head = json.loads(state[8 : 8 + length])
            slots = numpy.frombuffer(state[8 + length :], dtype=numpy.float32).reshape(int(head["slots"]), self.params.size)
            self._slots, self._steps = [slot.copy() for slot in slots], int(head["steps"])
        except (ValueError, KeyError, TypeError) as error:
            raise PacelineError(f"the state of another worker cannot be read: {error}") from error
