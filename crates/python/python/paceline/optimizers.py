"""Optimizers of the engine, for `fit`."""

from dataclasses import dataclass
from typing import Any

__all__ = ["SGD", "AdamW", "Optimizer"]


@dataclass(frozen=True)
class SGD:
    """SGD with momentum, as `torch.optim.SGD` computes it."""

    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def rule(self) -> dict[str, Any]:
        """The rule as a job file spells it."""
        return {
            "kind": "sgd",
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "weight_decay": self.weight_decay,
        }


@dataclass(frozen=True)
class AdamW:
    """AdamW, as `torch.optim.AdamW` computes it."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def rule(self) -> dict[str, Any]:
        """The rule as a job file spells it."""
        return {
            "kind": "adamw",
            "beta1": self.betas[0],
            "beta2": self.betas[1],
            "epsilon": self.eps,
            "weight_decay": self.weight_decay,
        }


Optimizer = SGD | AdamW
