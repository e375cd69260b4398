"""The user's optimizer: its `step` makes the step that was asked for."""

import types
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from .errors import Refused

if TYPE_CHECKING:
    from .host import Host

__all__ = ["State", "wrap_optimizer"]


class State(Enum):
    """What the user's loop must do next."""

    #: Ask for a batch.
    IDLE = 0
    #: Call backward() on the batch.
    COMPUTING = 1
    #: Call optimizer.step(): the gradients are the mean over all workers.
    APPLY = 2
    #: Call optimizer.step(), which does nothing: there is no update yet.
    NOTHING = 3


def wrap_optimizer(host: "Host") -> None:
    """Replaces `step` of the optimizer, on this object only."""
    inner: Callable[..., Any] = host.optimizer.step

    def step(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None, **more: Any) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if host.state is State.NOTHING:
            host.state = State.IDLE
            optimizer._opt_called = True  # type: ignore[attr-defined]
            return loss
        if host.state is not State.APPLY:
            if host.is_over:
                return loss
            raise Refused("optimizer.step() without a gradient: call loss.backward() on a batch of the loader first")
        _check_unchanged(host)
        rates = [group.get("lr") for group in optimizer.param_groups]
        if host.factor != 1.0:
            for group in optimizer.param_groups:
                if group.get("lr") is not None:
                    group["lr"] = group["lr"] * host.factor
        try:
            inner(**more)
        finally:
            if host.factor != 1.0:
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    if rate is not None:
                        group["lr"] = rate
        host.updates += 1
        optimizer._opt_called = True  # type: ignore[attr-defined]
        host.applied()
        return loss

    # Schedulers look for this to see whether they are called after step().
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    host.optimizer.step = types.MethodType(step, host.optimizer)  # type: ignore[method-assign]


def _check_unchanged(host: "Host") -> None:
    held = sum(1 for group in host.optimizer.param_groups for p in group["params"] if p.requires_grad)
    known = len(host.replica.params)
    if held != known:
        raise Refused(
            f"the optimizer has {held} parameters that are learned, and had {known} in worker.prepare: add parameter groups and "
            "change requires_grad before it"
        )
