"""The server's side of SCAFFOLD: c, the mean of the silos' control variates, and what it is a mean of."""

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


class ForgottenError(Exception):
    """Silos whose state is not the one that the server has counted."""


class ControlVariates:
    """c by parameter, and the last round in which each silo's part of it was counted.

    Without parameters it is the state of an algorithm that has none, and does nothing.

    Attributes:
        since: the round from which the states of silos count; silos use no earlier one.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.tensors = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        self.rounds: dict[str, int] = {}
        self.since = 0

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the tensors."""
        return {"state_rounds": self.rounds, "state_since": self.since}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name, control in self.tensors.items():
            control.copy_(tensors[name])
        self.rounds = dict(facts.get("state_rounds", {}))
        self.since = int(facts.get("state_since", 0))

    def require_counted(self, answers: Facts) -> None:
        """Raise if a silo used another state than that of the last round in which it was counted."""
        found: dict[str, str] = {}
        for silo, facts in answers.items() if self.tensors else ():
            used, expected = int(facts[STATE_ROUND]), self.rounds.get(silo, 0)
            if used != expected:
                had = f"that of round {used}" if used else "none"
                found[silo] = f"it was to use its state of round {expected} and used {had}"
        if found:
            raise ForgottenError(sentence(found))

    def begin_again(self, number: int, who: str) -> None:
        """Let all silos begin with no state, since the mean of all is no longer the one known here."""
        self.since, self.rounds = number, {}
        for control in self.tensors.values():
            control.zero_()
        warnings.warn(f"{who}: all silos begin again without state", FedILCWarning, stacklevel=3)

    @torch.no_grad()
    def learn(self, number: int, moved: Mapping[str, Tensor], answers: Facts, silos: int) -> None:
        """Add how the control variates of those that answered moved, as a share of all silos."""
        for name, control in self.tensors.items():
            control += len(answers) / silos * moved[name]
        if self.tensors:
            self.rounds |= dict.fromkeys(answers, number)
