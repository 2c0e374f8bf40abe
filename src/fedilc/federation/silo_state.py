"""A silo's state between rounds, such as its control variate; it is never sent.

A state belongs to the round that computed it. The last two are kept because a round may be repeated: after
the coordinator was killed, or without a silo that was lost.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from urllib.parse import quote

from torch import Tensor

from fedilc.errors import CheckpointError, FedILCWarning
from fedilc.federation.tensor_files import read_tensors, write_tensors

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

    def before(self, round_: int) -> State:
        """Return the newest state before a round, with its round; (0, {}) if there is none."""
        return max(
            (state for state in self._states if state[0] < round_),
            key=lambda state: state[0],
            default=(0, {}),
        )

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
            reason = str(error).partition("; ")[0]
            warnings.warn(f"{reason}; the silo starts without this state", FedILCWarning, stacklevel=4)
            return []
        return [(int(about["round"]), tensors)] if about.get("run", "") == self._run else []
