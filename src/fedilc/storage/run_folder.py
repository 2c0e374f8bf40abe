"""The run folder: everything that a run writes to disk (`RunFolder`), and the check for damage (`examine`).

`create` writes `run.json` (settings, digests of data, machine). Each round, `save` appends to `history.jsonl`
and `timing.jsonl`, then replaces `checkpoint.safetensors` and keeps the one before it. `resume` continues
from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from fedilc.errors import CheckpointError, FedILCWarning, listed
from fedilc.storage.files import (
    DIGEST,
    TimingFile,
    append_line,
    chain_digest,
    check_digest,
    complete_lines,
    json_bytes,
    json_digest,
    parse_json,
    read_plain,
    read_tensors,
    replace_lines,
    tensors_below,
    with_digest,
    write_atomically,
    write_tensors,
)
from fedilc.storage.run_identity import changed_facts, command_line, machine_facts, require_same, upgraded

PREPROCESSING = "preprocessing.json"
SUMMARIES = "summaries.json"
FILES = "files"  # the key of run.json under which other files have their digests
UPDATES = "recalibrations"  # the key of run.json with what was fitted to a model after its training


class RunFolder:
    """The folder of one run; it is locked while a process writes to it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.settings_file = self.path / "run.json"
        self.history_file = self.path / "history.jsonl"
        self.timing = TimingFile(self.path / "timing.jsonl")
        self.checkpoint_file = self.path / "checkpoint.safetensors"
        self.previous_file = self.path / "checkpoint-previous.safetensors"
        self._lock = FileLock(self.path / ".lock", timeout=0)
        self._history_digest = ""
        self._checkpoint_valid = False
        self._command = {"command": command_line()}

    def create(self, settings: Mapping[str, Any], files: Mapping[str, bytes] | None = None) -> None:
        """Begin a new run, with further files by name; raise if the folder already holds a run."""
        if any(f.exists() for f in (self.settings_file, self.history_file, self.checkpoint_file)):
            raise CheckpointError(
                f"{self.path} already holds a run",
                "continue it with `resume=True`, or choose another folder",
            )
        with self._os_errors("the run cannot begin"):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._acquire_lock()
            machines = settings.get("machines") or [{"from_round": 1, **machine_facts()}]
            for name, content in (files or {}).items():
                write_atomically(self.path / name, content)
            present = [name for name in (PREPROCESSING, SUMMARIES) if (self.path / name).exists()]
            digests = {name: _digest(self.path / name) for name in present}
            facts = {**settings, "machines": machines, **({FILES: digests} if digests else {})}
            write_atomically(self.settings_file, _settings(facts))

    def resume(self, settings: Mapping[str, Any]) -> Checkpoint | None:
        """Return the checkpoint to continue from; None before the first round. Raise if settings differ."""
        before = self.settings(require_digest=True)
        if UPDATES in before:
            raise CheckpointError(
                f"{self.path} holds a recalibrated model, which cannot be trained on",
                "resume the run that it was made from, and recalibrate again",
            )
        require_same(self.path, before, json.loads(json_bytes(settings)))
        for name in before.get(FILES, {}):
            self.require_whole(name)
        with self._os_errors("the run cannot continue", "read or written"):
            self._acquire_lock()
            checkpoint = self._load_newest()
            done, rounds = checkpoint.round if checkpoint else 0, settings["rounds"]
            if done > rounds:
                raise CheckpointError(
                    f"{self.path} has already done {done} rounds, more than rounds={rounds}",
                    "ask for at least as many, or choose another folder",
                )
            kept = complete_lines(self.history_file)[:done]
            self._history_digest = chain_digest(kept)
            replace_lines(self.history_file, kept)
            self.timing.cut(done)
            files = {FILES: before[FILES]} if FILES in before else {}
            content = _settings({**settings, "machines": self._machines(done), **files})
            if self.settings_file.read_bytes() != content:
                write_atomically(self.settings_file, content)
        return checkpoint

    def save(
        self,
        record: Mapping[str, Any],
        seconds: float,
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, Any],
        stopped: str | None,
    ) -> None:
        """Write a completed round: its record, its time, then the checkpoint with the server's state.

        In this order, because the checkpoint completes the round: after a crash before it, the history is one
        line ahead, which `resume` cuts off.
        """
        line = json_bytes(record)
        with self._os_errors(f"round {record['round']} is lost; correct this, then resume"):
            append_line(self.history_file, line)
            self._history_digest = chain_digest([line.rstrip(b"\n")], self._history_digest)
            self.timing.append({"round": record["round"], "seconds": round(seconds, 6), **self._command})
            self._command = {}
            about = {"round": record["round"], "stopped": stopped, "history": self._history_digest}
            about |= {"facts": dict(facts)} if facts else {}
            previous = self.previous_file if self._checkpoint_valid else None
            write_tensors(self.checkpoint_file, tensors, about, previous)
            self._checkpoint_valid = True

    def load(self, checkpoint: Path | None = None) -> Checkpoint:
        """Return a checkpoint, by default that of the last completed round, and the history up to it."""
        tensors, about = read_tensors(checkpoint or self.checkpoint_file)
        round_, lines = about["round"], complete_lines(self.history_file)
        if len(lines) < round_:
            raise _lost(
                f"{self.history_file} has {len(lines)} records, but the checkpoint is from round {round_}"
            )
        if about.get("history", "") not in ("", chain_digest(lines[:round_])):
            raise _lost(
                f"{self.history_file} is damaged: a line up to round {round_} was changed, dropped or swapped"
            )
        return Checkpoint(
            round=round_,
            tensors=tensors,
            facts=about.get("facts", {}),
            stopped=about["stopped"],
            history=self._parsed(lines[:round_]),
        )

    def history(self) -> list[dict[str, Any]]:
        """Return all records of the history file; an incomplete last line is left out."""
        return self._parsed(complete_lines(self.history_file))

    def settings(self, require_digest: bool = False) -> dict[str, Any]:
        """Return the settings of the run in today's form, without their digest, which 0.1 did not write."""
        try:
            found = parse_json(read_plain(self.settings_file))
            if not isinstance(found, dict):
                raise ValueError("it does not hold an object")
            if DIGEST in found:
                return upgraded(check_digest(found))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._no_run() from error
        except OSError as error:
            raise _lost(f"{self.settings_file} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise _lost(f"{self.settings_file} is damaged: {error}") from error
        if require_digest:
            raise CheckpointError(
                f"{self.settings_file} has no digest: it is damaged, or was written by version 0.1",
                "resume with that version, or start again in another folder",
            )
        return upgraded(found)

    def require_whole(self, name: str) -> None:
        """Raise if a file does not match its digest in run.json; earlier versions wrote no digest."""
        digest = self.settings().get(FILES, {}).get(name)
        if digest is None:
            return
        with self._os_errors(f"restore {name} from a copy", "read"):
            found = _digest(self.path / name)
        if found != digest:
            raise _lost(f"{self.path / name} was changed or damaged: its digest is not the one in run.json")

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def _acquire_lock(self) -> None:
        """Lock the folder for this process; the system releases the lock when the process ends."""
        try:
            self._lock.acquire()
        except Timeout:
            raise CheckpointError(
                f"{self.path} is in use by another process",
                "wait until it ends, or choose another folder",
            ) from None

    @contextlib.contextmanager
    def _os_errors(self, consequence: str, action: str = "written") -> Iterator[None]:
        """Turn an OSError into one sentence: what cannot be done, why, and the consequence."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise CheckpointError(f"{self.path} cannot be {action}: {reason}", consequence) from error

    def _no_run(self) -> CheckpointError:
        """Return the error for a folder without run.json; it names the runs in it, if there are any."""
        below = sorted(path.parent.name for path in self.path.glob(f"*/{self.settings_file.name}"))
        if below:
            found = f"{self.path} is not a run, but holds runs ({listed(below)})"
            return CheckpointError(found, f"name one, such as {self.path / below[0]}")
        missing = f"{self.path} holds no run (there is no run.json)"
        return CheckpointError(missing, "name the folder of a run, or start one")

    def _machines(self, done: int) -> list[dict[str, Any]]:
        """Return the machines that computed the rounds, each from a round on; warn if the machine changes."""
        machines: list[dict[str, Any]] = self.settings().get("machines", [])
        now = machine_facts()
        changed = changed_facts(machines[-1], now) if machines else ""
        if changed:
            warnings.warn(
                f"{self.path} continues with other software, threads or processor ({changed}); the last "
                "digits may differ from those of an uninterrupted run",
                FedILCWarning,
                stacklevel=4,
            )
        return machines if machines and not changed else [*machines, {"from_round": done + 1, **now}]

    def _load_newest(self) -> Checkpoint | None:
        """Return the newest valid checkpoint; warn if the last one written is damaged."""
        if not self.checkpoint_file.exists():
            return self._load_previous()
        try:
            checkpoint = self.load(self.checkpoint_file)
            self._checkpoint_valid = True
            return checkpoint
        except CheckpointError as error:
            try:
                previous = self._load_previous()
            except CheckpointError:
                raise error from None
            start = f"round {previous.round}" if previous else "the beginning"
            warnings.warn(f"{error.problem}; the run continues from {start}", FedILCWarning, stacklevel=2)
            return previous

    def _load_previous(self) -> Checkpoint | None:
        """Return the previous checkpoint; None if at most one round was completed."""
        if self.previous_file.exists():
            return self.load(self.previous_file)
        rounds = len(complete_lines(self.history_file))
        if rounds > 1:
            raise _lost(f"{self.checkpoint_file} is missing although {rounds} rounds were completed")
        return None

    def _parsed(self, lines: list[bytes]) -> list[dict[str, Any]]:
        try:
            records = [parse_json(line) for line in lines]
            if not all(isinstance(record, dict) and "train_loss" in record for record in records):
                raise ValueError("a line is not the record of a round")
            return records
        except ValueError as error:
            raise _lost(f"{self.history_file} is damaged ({error})") from error


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file, and the history up to its round.

    Attributes:
        round: the round after which it was written.
        tensors: `weights.*`, `optimizer.*`, `control.*` and, if `weights.*` are an average, `unaveraged.*`,
            as `Server.tensors` returns them.
        facts: the weights of silos and the rounds of their states, as `Server.facts` returns them.
        stopped: why training stopped early, if it did.
        history: the records up to the round.
    """

    round: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    stopped: str | None
    history: list[dict[str, Any]]

    @property
    def weights(self) -> dict[str, Tensor]:
        """Return w by name."""
        return tensors_below(self.tensors, "weights")


def record_digest(record: Mapping[str, Any]) -> str:
    """Return a digest of what a round computed, without keys that callbacks add to its record."""
    return json_digest({key: record.get(key) for key in ("round", "train_loss", "silos")})


def require_record(file: Path, about: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
    """Raise if a round's weights belong to another record than the one in the history.

    Three kinds are not compared: weights of an earlier version, which have no digest of the record; those of
        a
    published run, which has no history; and those of an interrupted round, which are ahead of the history.
    """
    round_ = int(about["round"])
    if "record" not in about or len(history) < round_:
        return
    if record_digest(history[round_ - 1]) != about["record"]:
        raise _lost(f"{file} belongs to another run than the history beside it")


def _digest(path: Path) -> str:
    return hashlib.sha256(read_plain(path)).hexdigest()


def _settings(settings: Mapping[str, Any]) -> bytes:
    """Return the content of run.json."""
    return json_bytes(with_digest(json.loads(json_bytes(settings))), indent=2)


def _lost(problem: str) -> CheckpointError:
    """Return the error for a file that is lost."""
    return CheckpointError(problem, "restore it from a copy, or start again in another folder")


def examine(path: Path) -> dict[str, str | None]:
    """Return what is wrong with each file that has digests; None for a file that is intact.

    This includes the audit files of a coordinator. The history may be one line ahead of the checkpoint.
    """
    folder = RunFolder(path)
    checks: dict[Path, Callable[[], object]] = {
        folder.settings_file: partial(folder.settings, require_digest=True),
        folder.history_file: partial(_require_history, folder),
        folder.timing.path: partial(_require_line_digests, folder.timing.path),
    }
    checks |= {file: partial(_require_line_digests, file) for file in sorted(path.glob("audit*.jsonl"))}
    weights = [folder.checkpoint_file, folder.previous_file, *sorted(path.glob("best-*.safetensors"))]
    checks |= {file: partial(_require_weights, folder, file) for file in weights}
    named = _named_files(folder)
    checks |= {path / name: partial(folder.require_whole, name) for name in named}
    needed = {folder.settings_file, *(path / name for name in named)}
    if _completed(folder) > 1:
        needed |= {folder.checkpoint_file, folder.history_file}
    return {file.name: _problem(check) for file, check in checks.items() if file.exists() or file in needed}


def _named_files(folder: RunFolder) -> list[str]:
    """Return the files whose digests are in run.json; none if run.json itself is damaged."""
    try:
        return list(folder.settings().get(FILES, {}))
    except CheckpointError:
        return []


def _completed(folder: RunFolder) -> int:
    try:
        return len(complete_lines(folder.history_file))
    except OSError:
        return 0


def _require_history(folder: RunFolder) -> None:
    for number, record in enumerate(folder.history(), 1):
        if record.get("round") != number:
            raise ValueError(f"line {number} is the record of round {record.get('round')}")
    for checkpoint in (folder.previous_file, folder.checkpoint_file):
        if _problem(partial(read_tensors, checkpoint)) is None:
            folder.load(checkpoint)


def _require_weights(folder: RunFolder, file: Path) -> None:
    """Raise if weights are damaged, or belong to the record of another run."""
    _, about = read_tensors(file)
    if "record" in about and not _problem(folder.history):
        require_record(file, about, folder.history())


def _require_line_digests(file: Path) -> None:
    """Raise if a line is incomplete or has no valid digest."""
    for number, line in enumerate(read_plain(file).splitlines(keepends=True), 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("it is not complete")
            check_digest(parse_json(line))
        except (ValueError, AttributeError) as error:
            raise ValueError(f"line {number} is damaged, and its content is lost") from error


def _problem(check: Callable[[], object]) -> str | None:
    try:
        check()
    except CheckpointError as error:
        return error.problem
    except ValueError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    return None
