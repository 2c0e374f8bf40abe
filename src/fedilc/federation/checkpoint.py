"""A run folder: what a run is, what it has done, and where it goes on from.

    run.json                  the settings the run belongs to
    history.jsonl             one record a round, no clock in it
    timing.jsonl              seconds a round, beside the history so that the history repeats exactly
    checkpoint.safetensors    weights and optimiser after the last completed round
    .lock                     held by the process that trains here

Every file is replaced by writing, syncing and renaming, or appended and cut back on resume to what
the checkpoint vouches for: a run killed anywhere goes on from the last completed round.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedilc.errors import CheckpointError
from fedilc.packing import packed

_NOT_IDENTITY = ("rounds", "device")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file so that a reader, or a crash, sees the old or the new and nothing between."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Tensors and a JSON object in one safetensors file, atomically."""
    write_atomically(path, packed(tensors, {"fedilc": json.dumps(about)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the JSON object of `write_tensors`, or an error that names the file."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["fedilc"])
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, about
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged or not a FedILC checkpoint ({error}); restore it from a copy, or "
            "start again in another folder"
        ) from error


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read back."""

    round: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    stopped: str | None
    history: list[dict[str, Any]]


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.settings_file = self.path / "run.json"
        self.history_file = self.path / "history.jsonl"
        self.timing_file = self.path / "timing.jsonl"
        self.checkpoint_file = self.path / "checkpoint.safetensors"
        self._lock = FileLock(self.path / ".lock", timeout=0)

    def create(self, settings: Mapping[str, Any]) -> None:
        """Begin a new run here; refuses a folder that already holds one."""
        if any(f.exists() for f in (self.settings_file, self.history_file, self.checkpoint_file)):
            raise CheckpointError(
                f"{self.path} already holds a run; continue it with --resume (resume=True), or "
                "choose another folder"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._take()
            write_atomically(self.settings_file, _json(settings, indent=2))
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be written: {error.strerror}") from error

    def _take(self) -> None:
        """Keep the folder for this process; the lock goes with the process, however that ends."""
        try:
            self._lock.acquire()
        except Timeout:
            raise CheckpointError(
                f"{self.path} is in use by another process; wait until that ends, or choose another folder"
            ) from None

    def release(self) -> None:
        """Let other processes have the folder."""
        self._lock.release()

    def settings(self) -> dict[str, Any]:
        """The settings the run belongs to."""
        try:
            found = json.loads(self.settings_file.read_text())
        except OSError as error:
            raise CheckpointError(
                f"{self.path} holds no run (there is no run.json); leave out --resume to start one"
            ) from error
        except ValueError as error:
            raise CheckpointError(f"{self.settings_file} is damaged: {error}") from error
        if not isinstance(found, dict):
            raise CheckpointError(f"{self.settings_file} is damaged: it does not hold an object")
        return found

    def resume(self, settings: Mapping[str, Any]) -> Saved | None:
        """What to go on from (None if no round was completed); refuses another configuration."""
        before, now = self.settings(), json.loads(_json(settings))
        self._take()
        for key in sorted(set(before) | set(now)):
            if key not in _NOT_IDENTITY and before.get(key) != now.get(key):
                where, old, new = _difference(key, before.get(key), now.get(key))
                raise CheckpointError(
                    f"{self.path} belongs to another configuration: {where} was {_short(old)} there and is "
                    f"{_short(new)} here; resume with the same settings, or choose another folder"
                )
        saved = self.load() if self.checkpoint_file.exists() else None
        done = saved.round if saved else 0
        if saved is None and len(self.history()) > 1:
            raise CheckpointError(
                f"{self.checkpoint_file} is gone but {len(self.history())} rounds were done; restore it "
                "from a copy, or start again in another folder"
            )
        if done > now["rounds"]:
            raise CheckpointError(
                f"{self.path} has already done {done} rounds, more than rounds={now['rounds']}; "
                "ask for at least as many, or choose another folder"
            )
        self._cut(self.history_file, done)
        self._cut(self.timing_file, done)
        if before != now:
            write_atomically(self.settings_file, _json(settings, indent=2))
        return saved

    def load(self) -> Saved:
        """The last completed round, with the history up to it; changes nothing."""
        tensors, about = read_tensors(self.checkpoint_file)
        history = self.history()
        if len(history) < about["round"]:
            raise CheckpointError(
                f"{self.history_file} has {len(history)} records but the checkpoint is of round "
                f"{about['round']}; restore it from a copy, or start again in another folder"
            )
        return Saved(
            round=about["round"],
            weights=_below(tensors, "weights."),
            optimizer=_below(tensors, "optimizer."),
            stopped=about["stopped"],
            history=history[: about["round"]],
        )

    def history(self) -> list[dict[str, Any]]:
        """All complete records of the history file."""
        try:
            records = [json.loads(line) for line in self._lines(self.history_file)]
            if not all(isinstance(record, dict) and "train_loss" in record for record in records):
                raise ValueError("a line is not the record of a round")
            return records
        except ValueError as error:
            raise CheckpointError(
                f"{self.history_file} is damaged ({error}); restore it from a copy, or start again "
                "in another folder"
            ) from error

    def save(
        self,
        record: Mapping[str, Any],
        seconds: float,
        weights: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        stopped: str | None,
    ) -> None:
        """Put a completed round on disk: first its record, then the checkpoint that vouches for it."""
        self._append(self.history_file, record)
        self._append(self.timing_file, {"round": record["round"], "seconds": round(seconds, 6)})
        tensors = {f"weights.{name}": tensor for name, tensor in weights.items()}
        tensors |= {f"optimizer.{name}": tensor for name, tensor in optimizer.items()}
        write_tensors(self.checkpoint_file, tensors, {"round": record["round"], "stopped": stopped})

    def _append(self, path: Path, record: Mapping[str, Any]) -> None:
        with path.open("ab") as file:
            file.write(_json(record))
            file.flush()
            os.fsync(file.fileno())

    def _lines(self, path: Path) -> list[bytes]:
        content = path.read_bytes() if path.exists() else b""
        return content[: content.rfind(b"\n") + 1].splitlines()

    def _cut(self, path: Path, records: int) -> None:
        lines = self._lines(path)[:records]
        kept = b"".join(line + b"\n" for line in lines)
        if path.exists() and path.read_bytes() != kept:
            write_atomically(path, kept)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, entries in state.items()
        for key, value in entries.items()
    }


def blank_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What `optimizer_tensors` would give after a step of Adam, with zeros, to be filled."""
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


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _json(value: Mapping[str, Any], indent: int | None = None) -> bytes:
    return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()


def _difference(where: str, old: object, new: object) -> tuple[str, object, object]:
    """The first place, inside of objects, where two values differ.

    >>> _difference("model", {"layers": "a", "weights": 1}, {"layers": "a", "weights": 2})
    ('model.weights', 1, 2)
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                return _difference(f"{where}.{key}", old.get(key), new.get(key))
    return where, old, new


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
