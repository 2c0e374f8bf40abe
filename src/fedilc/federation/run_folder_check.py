"""Check the files of a run folder for damage, without changing any of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedilc.errors import CheckpointError
from fedilc.federation.json_files import check_digest, complete_lines, parse_json
from fedilc.federation.run_folder import FILES, RunFolder, require_record
from fedilc.federation.tensor_files import read_plain, read_tensors


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
    checks |= {file: partial(_require_weights, folder, file) for file in weights}
    named = _named_files(folder)
    checks |= {path / name: partial(folder.require_whole, name) for name in named}
    needed = {folder.settings_file, *(path / name for name in named)}
    if _completed(folder) > 1:
        needed |= {folder.checkpoint_file, folder.history_file}
    return {file.name: _problem(check) for file, check in checks.items() if file.exists() or file in needed}


def _named_files(folder: RunFolder) -> list[str]:
    """Return the files whose digests run.json has; none if it is damaged itself."""
    try:
        return list(folder.settings().get(FILES, {}))
    except CheckpointError:
        return []


def _completed(folder: RunFolder) -> int:
    try:
        return len(complete_lines(folder.history_file))
    except OSError:
        return 0


def _require_weights(folder: RunFolder, file: Path) -> None:
    """Raise if weights are damaged, or belong to the record of another run."""
    _, about = read_tensors(file)
    if "record" in about and not _problem(folder.history):
        require_record(file, about, folder.history())


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


def _require_history(folder: RunFolder) -> None:
    for number, record in enumerate(folder.history(), 1):
        if record.get("round") != number:
            raise ValueError(f"line {number} is of round {record.get('round')}")
    for checkpoint in (folder.previous_file, folder.checkpoint_file):
        if _problem(partial(read_tensors, checkpoint)) is None:
            folder.load(checkpoint)


def _require_line_digests(file: Path) -> None:
    """Raise if a line is incomplete or has no valid digest."""
    for number, line in enumerate(read_plain(file).splitlines(keepends=True), 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("it is not complete")
            check_digest(parse_json(line))
        except (ValueError, AttributeError) as error:
            raise ValueError(f"line {number} is damaged, and its content is lost") from error
