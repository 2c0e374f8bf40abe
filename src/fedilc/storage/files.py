"""Files with digests that show damage: tensors as safetensors, JSON objects, and one JSON object per line.

Tensor files come first (`write_tensors`, `read_tensors`), then atomic writes, JSON objects, and files of
lines.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedilc.errors import CheckpointError, FedILCWarning, ModelError

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DIGEST = "digest"
_ALIGNMENT = 8
_BLANK = "0" * 64
_DIGITS_PER_LINE = 16


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], previous: Path | None = None
) -> None:
    """Write tensors, a JSON object and a digest of both as one safetensors file, atomically."""
    write_atomically(path, pack_with_digest(tensors, {"fedilc": json.dumps(about)}), previous)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the JSON object of a file; raise an error that names the file if it is damaged.

    Files of version 0.1 have no digest and are read without this check.
    """
    try:
        body = read_plain(path)
        size = int.from_bytes(body[:8], "little")
        metadata = json.loads(body[8 : 8 + size])["__metadata__"]
        if set(metadata) != {"fedilc"}:
            require_digest(body)
        return load(body), json.loads(metadata["fedilc"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(
            f"{path} is damaged or not a FedILC checkpoint ({reason})",
            "restore it from a copy, or start again in another folder",
        ) from error


def pack_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return tensors as safetensors with metadata in the header; the widest dtypes come first, for alignment.

    >>> from safetensors.torch import load
    >>> load(pack_tensors({"w": torch.tensor([1.0, -2.0])}, {"of": "round 3"}))["w"]
    tensor([ 1., -2.])
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    parts, start = [], 0
    for name, tensor in sorted(tensors.items(), key=_sort_key):
        if tensor.dtype not in DTYPE_NAMES:
            raise ModelError(f"{name!r} is {tensor.dtype}, which cannot be stored; use floats or integers")
        stop = start + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, stop],
        }
        parts.append(raw_bytes(tensor))
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def pack_with_digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return tensors as `pack_tensors` does, with a SHA-256 in the header.

    The digest covers all bytes, with zeros in place of itself.

    >>> require_digest(pack_with_digest({"w": torch.tensor([1.0])}, {"of": "round 3"}))
    """
    body = pack_tensors(tensors, {"digest": _BLANK, **metadata})
    return body.replace(_BLANK.encode(), hashlib.sha256(body).hexdigest().encode(), 1)


def require_digest(body: bytes) -> None:
    """Raise ValueError if a body differs in any bit from what `pack_with_digest` returned."""
    end = 8 + int.from_bytes(body[:8], "little")
    try:
        stored = json.loads(body[8:end])["__metadata__"]["digest"]
        start = body.find(stored.encode(), 8, end)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("its header has no digest") from error
    found = hashlib.sha256(body[:start] + _BLANK.encode())
    found.update(memoryview(body)[start + len(_BLANK) :])
    if start < 0 or found.hexdigest() != stored:
        raise ValueError("its content does not match its digest")


def _sort_key(item: tuple[str, Tensor]) -> tuple[int, str]:
    """Return the key of a tensor's place in the file: by width, then by name."""
    return -item[1].element_size(), item[0]


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes, without a copy if it is contiguous."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def byte_size(tensors: Iterable[Tensor]) -> int:
    """Return the size of the numbers of tensors in bytes.

    >>> byte_size([torch.zeros(3), torch.zeros(2, dtype=torch.int8)])
    14
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def tensors_below(tensors: Mapping[str, Tensor], group: str) -> dict[str, Tensor]:
    """Return the tensors of a group, under their names without its prefix.

    >>> list(tensors_below({"weights.0.bias": torch.zeros(1), "optimizer.step": torch.zeros(1)}, "weights"))
    ['0.bias']
    """
    prefix = f"{group}."
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def write_atomically(path: Path, content: bytes, previous: Path | None = None) -> None:
    """Replace a file so that a reader, or a crash, finds the old or the new file, never a part of it.

    With `previous`, the old file is kept under that name; after a crash it may be the only one left.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        # The content must be on disk before the name points to it, and the folder after it: otherwise a crash
        # of the system may leave an empty file under the right name.
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            path.replace(previous)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def warn_if_not_written(path: Path) -> Iterator[None]:
    """Warn if a file that a run does not need cannot be written, and let the run continue."""
    try:
        yield
    except (OSError, CheckpointError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        warnings.warn(f"{path} cannot be written: {reason}; the run continues", FedILCWarning, stacklevel=4)


def read_plain(path: Path) -> bytes:
    """Return the content of a file, also through a link; raise for devices and pipes, which may never end."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    with path.open("rb") as file:
        try:
            return file.read(about.st_size)
        except (MemoryError, OverflowError) as error:
            raise OSError(errno.EFBIG, f"its {about.st_size} bytes do not fit into memory") from error


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


def json_bytes(value: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Return a JSON object as bytes, with a line end."""
    return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()


def json_digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object in canonical form."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return hashlib.sha256(text.encode()).hexdigest()


def with_digest(value: Mapping[str, Any], length: int = 64) -> dict[str, Any]:
    """Return a JSON object with a digest of its content, in `length` hexadecimal digits."""
    return {**value, DIGEST: json_digest(value)[:length]}


def check_digest(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object without its digest; raise ValueError if the digest does not match the content.

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


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file, and sync it to disk."""
    with path.open("ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def complete_lines(path: Path) -> list[bytes]:
    """Return the complete lines of a file, without line ends; an incomplete last line is left out."""
    content = read_plain(path) if path.exists() else b""
    return content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]


def replace_lines(path: Path, lines: Sequence[bytes]) -> None:
    """Replace the content of an existing file, if it differs."""
    content = b"".join(line + b"\n" for line in lines)
    if path.exists() and path.read_bytes() != content:
        write_atomically(path, content)


def chain_digest(lines: Iterable[bytes], head: str = "") -> str:
    """Return the digest of lines in order; they follow earlier lines, whose digest is `head`.

    >>> chain_digest([b"a", b"b"]) == chain_digest([b"b"], chain_digest([b"a"]))
    True
    >>> chain_digest([b"a", b"b"]) == chain_digest([b"b", b"a"])
    False
    """
    for line in lines:
        head = hashlib.sha256(head.encode() + line).hexdigest()
    return head


class TimingFile:
    """The file of seconds per round, with a digest per line. No run needs it, so failures are warnings."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append an entry."""
        with warn_if_not_written(self.path):
            append_line(self.path, json_bytes(with_digest(entry, _DIGITS_PER_LINE)))

    def cut(self, last_round: int) -> None:
        """Remove damaged lines and those after a round."""
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
