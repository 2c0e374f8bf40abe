"""The server's side of SCAFFOLD: c, the mean of the silos' control variates.

The silos keep their own control variates (`silo_state.py`); the server knows of which rounds they must be.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedilc.errors import FedILCWarning
from fedilc.federation.outliers import sentence
from fedilc.federation.program import STATE_ROUND
from fedilc.federation.runtime import Facts


class StateMismatchError(Exception):
    """A silo used another state than the one that is part of c."""


class ControlVariates:
    """c per parameter, and the round of each silo's control variate in it.

    For an algorithm without control variates it has no parameters and does nothing.

    Attributes:
        since: the first round whose states are valid; silos ignore earlier ones.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.tensors = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        self.rounds: dict[str, int] = {}
        self.since = 0

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint holds besides the tensors."""
        return {"state_rounds": self.rounds, "state_since": self.since}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        for name, control in self.tensors.items():
            control.copy_(tensors[name])
        self.rounds = dict(facts.get("state_rounds", {}))
        self.since = int(facts.get("state_since", 0))

    def require_matching(self, answers: Facts) -> None:
        """Raise if a silo used another state than the one that is part of c."""
        found: dict[str, str] = {}
        for silo, facts in answers.items() if self.tensors else ():
            used, expected = int(facts[STATE_ROUND]), self.rounds.get(silo, 0)
            if used != expected:
                had = f"that of round {used}" if used else "none"
                found[silo] = f"it should have used its state of round {expected} and used {had}"
        if found:
            raise StateMismatchError(sentence(found))

    def reset(self, number: int, reason: str) -> None:
        """Set c to zero and let all silos start without state, because c is no longer their mean."""
        self.since, self.rounds = number, {}
        for control in self.tensors.values():
            control.zero_()
        warnings.warn(f"{reason}: all silos start again without state", FedILCWarning, stacklevel=3)

    @torch.no_grad()
    def learn(self, number: int, moved: Mapping[str, Tensor], answers: Facts, silos: int) -> None:
        """Add the mean change of the control variates, times the share of silos that replied."""
        for name, control in self.tensors.items():
            control += len(answers) / silos * moved[name]
        if self.tensors:
            self.rounds |= dict.fromkeys(answers, number)
