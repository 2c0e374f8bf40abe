"""A run folder: what a run is, what it has done, and where it continues from.

    run.json                          the settings the run belongs to, with their digest
    history.jsonl                     one record per round, no clock in it
    timing.jsonl                      seconds per round, apart, so that the history repeats exactly; the first
                                      round of each process has the command that started it
    checkpoint.safetensors            weights, optimiser and other state after the last completed round
    checkpoint-previous.safetensors   the same of the round before
    preprocessing.json                how inputs are made of a table, if they are
    model-card.md                     what the model was trained on and how well it did, after the last round
    .lock                             held by the process that trains here

Every file is replaced by writing, syncing and renaming, or appended and cut back on resume to what
the checkpoint vouches for: a run killed anywhere continues from the last completed round. A checkpoint
holds a digest of itself and one of the history up to it, so that damage is found: the run then continues
from the round before, or is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from fedilc.errors import CheckpointError, FedILCWarning
from fedilc.federation.digests import chain_digest, check_digest, has_digest, with_digest
from fedilc.federation.machine_facts import changed_facts, command_line, machine_facts
from fedilc.federation.run_identity import require_same
from fedilc.federation.tensor_files import read_tensors, write_atomically, write_tensors

PREPROCESSING = "preprocessing.json"
SUMMARIES = "summaries.json"
_TIMING_DIGITS = 16


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read back."""

    round: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    stopped: str | None
    history: list[dict[str, Any]]

    @property
    def weights(self) -> dict[str, Tensor]:
        """Return w by name."""
        prefix = "weights."
        return {n.removeprefix(prefix): t for n, t in self.tensors.items() if n.startswith(prefix)}


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.settings_file = self.path / "run.json"
        self.history_file = self.path / "history.jsonl"
        self.timing_file = self.path / "timing.jsonl"
        self.checkpoint_file = self.path / "checkpoint.safetensors"
        self.previous_file = self.path / "checkpoint-previous.safetensors"
        self._lock = FileLock(self.path / ".lock", timeout=0)
        self._head = ""
        self._whole = False
        self._command = {"command": command_line()}

    def create(self, settings: Mapping[str, Any]) -> None:
        """Begin a new run here; refuses a folder that already holds one."""
        if any(f.exists() for f in (self.settings_file, self.history_file, self.checkpoint_file)):
            raise CheckpointError(
                f"{self.path} already holds a run; continue it with --resume (resume=True), or "
                "choose another folder"
            )
        with self._using("the run cannot begin"):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take()
            machines = [{"from_round": 1, **machine_facts()}]
            write_atomically(self.settings_file, _settings({**settings, "machines": machines}))

    @contextlib.contextmanager
    def _using(self, so: str, what: str = "written") -> Iterator[None]:
        """Say in a sentence that the folder cannot be used, and what follows from it."""
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be {what}: {error.strerror or error}; {so}") from error

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
        """Return the settings the run belongs to."""
        found = self.settings_as_written()
        try:
            return check_digest(found) if has_digest(found) else found
        except ValueError as error:
            raise CheckpointError(
                f"{self.settings_file} is damaged: {error}; restore it from a copy, or start again in "
                "another folder"
            ) from error

    def settings_as_written(self) -> dict[str, Any]:
        """Return the content of run.json, with its digest if it has one."""
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

    def resume(self, settings: Mapping[str, Any]) -> Checkpoint | None:
        """Return what to go on from (None if no round was completed); refuses another configuration."""
        self._require_same(settings)
        with self._using("the run cannot go on", "read or written"):
            self._take()
            saved = self._last_whole()
            done, rounds = saved.round if saved else 0, settings["rounds"]
            if done > rounds:
                raise CheckpointError(
                    f"{self.path} has already done {done} rounds, more than rounds={rounds}; "
                    "ask for at least as many, or choose another folder"
                )
            kept = self.lines(self.history_file)[:done]
            self._head = chain_digest(kept)
            self._rewrite(self.history_file, kept)
            self._mend_times(done)
            content = _settings({**settings, "machines": self._machines(done)})
            if self.settings_file.read_bytes() != content:
                write_atomically(self.settings_file, content)
        return saved

    def _machines(self, done: int) -> list[dict[str, Any]]:
        """Return what the rounds were computed with, with a note if the next ones are with something else."""
        machines: list[dict[str, Any]] = self.settings().get("machines", [])
        now = machine_facts()
        changed = changed_facts(machines[-1], now) if machines else ""
        if changed:
            warnings.warn(
                f"{self.path} continues with other software, threads or processor ({changed}); its last "
                "digits may differ from those of a run that was not interrupted",
                FedILCWarning,
                stacklevel=4,
            )
        return machines if machines and not changed else [*machines, {"from_round": done + 1, **now}]

    def _require_same(self, settings: Mapping[str, Any]) -> None:
        """Raise if the folder holds the run of another configuration, or files without digests."""
        if not has_digest(self.settings_as_written()):
            raise CheckpointError(
                f"{self.settings_file} has no digest: it is damaged, or of version 0.1, which kept none; "
                "resume with that version, or start again in another folder"
            )
        require_same(self.path, self.settings(), json.loads(_json(settings)))

    def _last_whole(self) -> Checkpoint | None:
        """Return the newest checkpoint that is whole, with a note if that is not the last one written."""
        if not self.checkpoint_file.exists() and not self.previous_file.exists():
            if len(self.lines(self.history_file)) > 1:
                raise CheckpointError(
                    f"{self.checkpoint_file} is gone but {len(self.lines(self.history_file))} rounds were "
                    "done; restore it from a copy, or start again in another folder"
                )
            return None
        if not self.checkpoint_file.exists():
            return self.load(self.previous_file)
        try:
            saved = self.load(self.checkpoint_file)
            self._whole = True
            return saved
        except CheckpointError as error:
            try:
                before = self._before()
            except CheckpointError:
                raise error from None
            after = f"round {before.round}" if before else "the beginning"
            reason = str(error).partition("; ")[0]
            warnings.warn(f"{reason}; the run continues from {after}", FedILCWarning, stacklevel=2)
            return before

    def _before(self) -> Checkpoint | None:
        """Return the checkpoint of the round before the last; before the first round there is none."""
        if not self.previous_file.exists() and len(self.lines(self.history_file)) <= 1:
            return None
        return self.load(self.previous_file)

    def load(self, checkpoint: Path | None = None) -> Checkpoint:
        """Return a checkpoint, by default that of the last completed round, and the history up to it."""
        tensors, about = read_tensors(checkpoint or self.checkpoint_file)
        round_, lines = about["round"], self.lines(self.history_file)
        if len(lines) < round_:
            raise CheckpointError(
                f"{self.history_file} has {len(lines)} records but the checkpoint is of round "
                f"{round_}; restore it from a copy, or start again in another folder"
            )
        if about.get("history", "") not in ("", chain_digest(lines[:round_])):
            raise CheckpointError(
                f"{self.history_file} is damaged: a line up to round {round_} was changed, dropped or "
                "swapped; restore it from a copy, or start again in another folder"
            )
        return Checkpoint(
            round=round_,
            tensors=tensors,
            facts=about.get("facts", {}),
            stopped=about["stopped"],
            history=self._parsed(lines[:round_]),
        )

    def history(self) -> list[dict[str, Any]]:
        """Return all complete records of the history file."""
        return self._parsed(self.lines(self.history_file))

    def _parsed(self, lines: list[bytes]) -> list[dict[str, Any]]:
        try:
            records = [json.loads(line) for line in lines]
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
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, Any],
        stopped: str | None,
    ) -> None:
        """Put a completed round on disk: first its record, then the checkpoint that vouches for it.

        `tensors` and `facts` are the server's state after the round.
        """
        line = _json(record)
        with self._using(f"round {record['round']} is not kept; fix that and resume from the round before"):
            _append(self.history_file, line)
            self._head = chain_digest([line.rstrip(b"\n")], self._head)
            self._note_time({"round": record["round"], "seconds": round(seconds, 6), **self._command})
            self._command = {}
            about = {"round": record["round"], "stopped": stopped, "history": self._head}
            about |= {"facts": dict(facts)} if facts else {}
            previous = self.previous_file if self._whole else None
            write_tensors(self.checkpoint_file, tensors, about, previous)
            self._whole = True

    def commands(self) -> list[str]:
        """Return the commands that computed the rounds, in order; damaged lines are left out."""
        entries = []
        for line in self.lines(self.timing_file):
            with contextlib.suppress(ValueError, AttributeError):
                entries.append(check_digest(json.loads(line)))
        return [entry["command"] for entry in entries if "command" in entry]

    def _note_time(self, entry: Mapping[str, Any]) -> None:
        """Append to the timing file, without which a run is as good."""
        try:
            _append(self.timing_file, _json(with_digest(entry, _TIMING_DIGITS)))
        except OSError as error:
            self._note_lost_time(error)

    def _mend_times(self, done: int) -> None:
        """Cut the timing file to a round and what is not damaged; without it a run is as good."""
        try:
            self._rewrite(self.timing_file, self._times(done))
        except OSError as error:
            self._note_lost_time(error)

    def _note_lost_time(self, error: OSError) -> None:
        warnings.warn(
            f"{self.timing_file} cannot be written: {error.strerror}; the run continues",
            FedILCWarning,
            stacklevel=3,
        )

    def _times(self, done: int) -> list[bytes]:
        """Return the lines of the timing file up to a round, with a note if some are damaged."""
        kept, damaged = [], 0
        for line in self.lines(self.timing_file):
            try:
                if check_digest(json.loads(line))["round"] <= done:
                    kept.append(line)
            except (ValueError, AttributeError):
                damaged += 1
        if damaged:
            warnings.warn(
                f"{self.timing_file} is damaged in {damaged} lines: these times are lost, and nothing else",
                FedILCWarning,
                stacklevel=2,
            )
        return kept

    def lines(self, path: Path) -> list[bytes]:
        """Return the complete lines of one of the folder's files."""
        content = path.read_bytes() if path.exists() else b""
        return content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]

    def _rewrite(self, path: Path, lines: list[bytes]) -> None:
        """Make a file these lines, if it is not that already."""
        kept = b"".join(line + b"\n" for line in lines)
        if path.exists() and path.read_bytes() != kept:
            write_atomically(path, kept)


def _append(path: Path, line: bytes) -> None:
    with path.open("ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def _settings(settings: Mapping[str, Any]) -> bytes:
    """Return the content of run.json."""
    return _json(with_digest(json.loads(_json(settings))), indent=2)


def _json(value: Mapping[str, Any], indent: int | None = None) -> bytes:
    return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()
