"""An optimiser's state as named tensors, to store and to restore."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedilc.aggregation.base import is_finite


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's state as named tensors."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, entries in state.items()
        for key, value in entries.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore a state that `optimizer_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, key = name.split(".", 1)
        state.setdefault(int(number), {})[key] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


class Undo:
    """A copy of weights and optimiser, to undo a step."""

    def __init__(self, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
        self._weights = {name: tensor.clone() for name, tensor in weights.items()}
        self._state = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer).items()}

    def restore(self, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
        """Restore the copy, to the bit."""
        for name, tensor in weights.items():
            tensor.copy_(self._weights[name])
        restore_optimizer(optimizer, self._state)


def all_finite(weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> bool:
    """Return whether weights and optimiser hold no NaN and no infinity."""
    return all(is_finite(tensor) for tensor in (*weights.values(), *optimizer_tensors(optimizer).values()))
