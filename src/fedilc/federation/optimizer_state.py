"""An optimiser's state as named tensors, to keep, to send and to put back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's state as named tensors."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, entries in state.items()
        for key, value in entries.items()
    }


def blank_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return what `optimizer_tensors` would give after a step of Adam, with zeros, to be filled."""
    state: dict[str, Tensor] = {}
    for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        state[f"{number}.step"] = torch.tensor(0.0)
        state |= {f"{number}.{key}": torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
    return state


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, key = name.split(".", 1)
        state.setdefault(int(number), {})[key] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
