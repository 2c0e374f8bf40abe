"""Files with one JSON object per line: the history of a run, and the times of its rounds."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedilc.errors import FedILCWarning
from fedilc.federation.digests import check_digest, with_digest
from fedilc.federation.tensor_files import write_atomically

_DIGEST_DIGITS = 16


def json_bytes(value: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Return a JSON object as bytes, with a line end."""
    return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file, and sync it to disk."""
    with path.open("ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def complete_lines(path: Path) -> list[bytes]:
    """Return the lines of a file without their ends; a last line that is incomplete is left out."""
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]


def replace_lines(path: Path, lines: Sequence[bytes]) -> None:
    """Replace the content of an existing file, if it differs."""
    content = b"".join(line + b"\n" for line in lines)
    if path.exists() and path.read_bytes() != content:
        write_atomically(path, content)


class TimingFile:
    """The seconds per round, with a digest per line. A run does not need it: failures are warnings."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append an entry."""
        with self._warn_if_not_writable():
            append_line(self.path, json_bytes(with_digest(entry, _DIGEST_DIGITS)))

    def cut(self, last_round: int) -> None:
        """Cut the file back to a round, and remove damaged lines."""
        with self._warn_if_not_writable():
            replace_lines(self.path, self._lines_up_to(last_round))

    def _lines_up_to(self, last_round: int) -> list[bytes]:
        """Return the intact lines up to a round; warn if others are damaged."""
        kept, damaged = [], 0
        for line in complete_lines(self.path):
            try:
                if check_digest(json.loads(line))["round"] <= last_round:
                    kept.append(line)
            except (ValueError, AttributeError):
                damaged += 1
        if damaged:
            warnings.warn(
                f"{self.path} has {damaged} damaged lines: only the times of these rounds are lost",
                FedILCWarning,
                stacklevel=4,
            )
        return kept

    def commands(self) -> list[str]:
        """Return the commands that trained the run, in order; damaged lines are left out."""
        entries = []
        for line in complete_lines(self.path):
            with contextlib.suppress(ValueError, AttributeError):
                entries.append(check_digest(json.loads(line)))
        return [entry["command"] for entry in entries if "command" in entry]

    @contextlib.contextmanager
    def _warn_if_not_writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = f"{self.path} cannot be written: {error.strerror}; the run continues"
            warnings.warn(text, FedILCWarning, stacklevel=5)
