"""A PyTorch optimizer as one of the engine's, for strategies in which a center applies the gradients."""

from typing import Any

import torch

from .errors import Refused

__all__ = ["center_rule"]


def center_rule(optimizer: torch.optim.Optimizer, strategy: str) -> dict[str, Any]:
    """The rule by which a center makes the steps of this optimizer."""
    why = f"strategy = {strategy}: a center applies the gradients with an optimizer of its own"
    groups = optimizer.param_groups
    settings = [{k: v for k, v in group.items() if k not in ("params", "initial_lr")} for group in groups]
    if any(setting != settings[0] for setting in settings):
        raise Refused(f"{why}, which has one parameter group: give all groups the same settings")
    group = settings[0]
    plain = type(optimizer)
    if plain is torch.optim.SGD:
        if group["dampening"] != 0 or group["maximize"]:
            raise Refused(f"{why}: use SGD without dampening and maximize")
        return {
            "kind": "sgd",
            "momentum": float(group["momentum"]),
            "nesterov": bool(group["nesterov"]),
            "weight_decay": float(group["weight_decay"]),
        }
    is_adam = plain is torch.optim.Adam and float(group["weight_decay"]) == 0.0
    if plain is torch.optim.AdamW or is_adam:
        if group["amsgrad"] or group["maximize"]:
            raise Refused(f"{why}: use AdamW without amsgrad and maximize")
        return {
            "kind": "adamw",
            "beta1": float(group["betas"][0]),
            "beta2": float(group["betas"][1]),
            "epsilon": float(group["eps"]),
            "weight_decay": float(group["weight_decay"]),
        }
    raise Refused(f"{why}, which can be SGD or AdamW: choose one of these, or another strategy than {plain.__name__} can be used with")
