"""JSON objects and files of one JSON object per line, with digests that show damage."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedilc.errors import FedILCWarning
from fedilc.federation.tensor_files import read_plain, warn_if_not_written, write_atomically

DIGEST = "digest"
_DIGITS_PER_LINE = 16


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; raise ValueError also if it is nested too deeply for the parser.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def chain_digest(lines: Iterable[bytes], head: str = "") -> str:
    """Return the digest of lines in order, which follow the lines whose digest is `head`.

    >>> chain_digest([b"a", b"b"]) == chain_digest([b"b"], chain_digest([b"a"]))
    True
    >>> chain_digest([b"a", b"b"]) == chain_digest([b"b", b"a"])
    False
    """
    for line in lines:
        head = hashlib.sha256(head.encode() + line).hexdigest()
    return head


def with_digest(value: Mapping[str, Any], length: int = 64) -> dict[str, Any]:
    """Return a JSON object with a digest of its content, of `length` hexadecimal digits."""
    return {**value, DIGEST: json_digest(value)[:length]}


def check_digest(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object without its digest; raise ValueError if the digest is not that of its content.

    >>> check_digest(with_digest({"round": 3}))
    {'round': 3}
    >>> check_digest(with_digest({"round": 3}) | {"round": 4})
    Traceback (most recent call last):
    ValueError: its content does not match its digest
    """
    content = {key: entry for key, entry in value.items() if key != DIGEST}
    stored = value.get(DIGEST)
    if not isinstance(stored, str) or not stored or not json_digest(content).startswith(stored):
        raise ValueError("its content does not match its digest")
    return content


def json_digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object in canonical form."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return hashlib.sha256(text.encode()).hexdigest()


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
    content = read_plain(path) if path.exists() else b""
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
        with warn_if_not_written(self.path):
            append_line(self.path, json_bytes(with_digest(entry, _DIGITS_PER_LINE)))

    def cut(self, last_round: int) -> None:
        """Cut the file back to a round, and remove damaged lines."""
        with warn_if_not_written(self.path):
            intact = self._intact()
            damaged = len(complete_lines(self.path)) - len(intact)
            if damaged:
                warnings.warn(
                    f"{self.path} has {damaged} damaged lines: only the times of these rounds are lost",
                    FedILCWarning,
                    stacklevel=3,
                )
            replace_lines(self.path, [line for line, entry in intact if entry["round"] <= last_round])

    def commands(self) -> list[str]:
        """Return the commands that trained the run, in order; damaged lines are left out."""
        return [entry["command"] for _, entry in self._intact() if "command" in entry]

    def _intact(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Return the lines that are not damaged, each with its content."""
        found = []
        for line in complete_lines(self.path):
            with contextlib.suppress(ValueError, AttributeError):
                found.append((line, check_digest(parse_json(line))))
        return found
