"""SCAFFOLD's control variates: c, which the server holds, and c_e, which each silo keeps and never sends.

c is the mean of the silos' c_e, so the server records the round of each c_e in it. A silo keeps its last two
states because a round may be repeated: after the coordinator was killed, or without a silo that was lost.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor

from fedilc.errors import CheckpointError, FedILCWarning, silos_with_reasons
from fedilc.federation.program import STATE_ROUND
from fedilc.federation.protocol import SiloNumbers
from fedilc.storage.files import read_tensors, write_tensors

State = tuple[int, dict[str, Tensor]]
FOLDER = "silo-state"


class SiloState:
    """The states of one silo, in memory and, given a folder, on disk.

    Args:
        silo: its name.
        folder: where its states are stored; None keeps them in memory only.
        run: the identity of the run; states of another run are ignored.
    """

    def __init__(self, silo: str, folder: Path | None = None, run: str = "") -> None:
        self._run = run
        self._files: tuple[Path, Path] | None = None
        self._states: list[State] = []
        if folder is not None:
            name = quote(silo, safe="")
            self._files = folder / f"{name}.safetensors", folder / f"{name}-previous.safetensors"
            found = [state for file in reversed(self._files) for state in self._read(file)]
            self._states = list(dict(found).items())

    def before(self, round_: int, since: int = 0) -> State:
        """Return the newest state before a round, with its round; (0, {}) if none is as new as `since`."""
        found = (state for state in self._states if since <= state[0] < round_)
        return max(found, key=lambda state: state[0], default=(0, {}))

    def keep(self, round_: int, tensors: dict[str, Tensor]) -> None:
        """Keep the state after a round, and the one before it; drop all others."""
        before = self.before(round_)
        newest = max((done for done, _ in self._states), default=0)
        self._states = [*([before] if before[0] else []), (round_, tensors)]
        if self._files is None:
            return
        latest, previous = self._files
        latest.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = {"round": round_, "run": self._run}
        moved = previous if 0 < newest < round_ and latest.exists() else None
        write_tensors(latest, tensors, about, moved)
        if not before[0]:
            previous.unlink(missing_ok=True)

    def _read(self, file: Path) -> list[State]:
        if not file.exists():
            return []
        try:
            tensors, about = read_tensors(file)
        except CheckpointError as error:
            warnings.warn(f"{error.problem}; the silo starts without this state", FedILCWarning, stacklevel=4)
            return []
        return [(int(about["round"]), tensors)] if about.get("run", "") == self._run else []


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

    def require_matching(self, replies: SiloNumbers) -> None:
        """Raise if a silo used another state than the one that is part of c."""
        found: dict[str, str] = {}
        for silo, reply in replies.items() if self.tensors else ():
            used, expected = int(reply[STATE_ROUND]), self.rounds.get(silo, 0)
            if used != expected:
                had = f"its state of round {used}" if used else "no state"
                found[silo] = f"it used {had} instead of its state of round {expected}"
        if found:
            raise StateMismatchError(silos_with_reasons(found))

    def reset(self, number: int, reason: str) -> None:
        """Set c to 0 and let all silos start without state, because c is no longer the mean of their c_e."""
        self.since, self.rounds = number, {}
        for control in self.tensors.values():
            control.zero_()
        warnings.warn(f"{reason}: all silos start again without state", FedILCWarning, stacklevel=3)

    @torch.no_grad()
    def learn(self, number: int, moved: Mapping[str, Tensor], replied: Collection[str], silos: int) -> None:
        """Add the mean change of the control variates, times the share of silos that replied."""
        for name, control in self.tensors.items():
            control += len(replied) / silos * moved[name]
        if self.tensors:
            self.rounds |= dict.fromkeys(replied, number)


class StateMismatchError(Exception):
    """A silo used another state than the one that is part of c."""
