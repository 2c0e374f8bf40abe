"""Check the files of a run folder for damage, without changing any of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedilc.errors import CheckpointError
from fedilc.federation.json_files import check_digest, complete_lines
from fedilc.federation.run_folder import RunFolder
from fedilc.federation.tensor_files import read_tensors


def examine(path: Path) -> dict[str, str | None]:
    """Return what is wrong with each file that has digests; None if nothing is.

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
    checks |= {file: partial(read_tensors, file) for file in weights}
    needed = {folder.settings_file}
    if len(complete_lines(folder.history_file)) > 1:
        needed |= {folder.checkpoint_file, folder.history_file}
    return {file.name: _problem(check) for file, check in checks.items() if file.exists() or file in needed}


def _problem(check: Callable[[], object]) -> str | None:
    try:
        check()
    except (CheckpointError, ValueError) as error:
        return str(error).partition("; ")[0]
    except OSError as error:
        return error.strerror or str(error)
    return None


def _require_history(folder: RunFolder) -> None:
    for number, record in enumerate(folder.history(), 1):
        if record.get("round") != number:
            raise ValueError(f"line {number} is of round {record.get('round')}")
    for checkpoint in (folder.previous_file, folder.checkpoint_file):
        if _problem(partial(read_tensors, checkpoint)) is None:
            folder.load(checkpoint)


def _require_line_digests(file: Path) -> None:
    """Raise if a line is incomplete or has no valid digest."""
    for number, line in enumerate(file.read_bytes().splitlines(keepends=True), 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("it is not complete")
            check_digest(json.loads(line))
        except (ValueError, AttributeError) as error:
            raise ValueError(f"line {number} is damaged, and its content is lost") from error
