"""Tensors as safetensors, in bytes and in files, with a digest that shows damage.

The library's own writer copies every tensor several times, which took most of the time of sending a small
message, so the bytes are put together here in one pass. Files are read with the library, which checks what it
reads.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping
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
_ALIGNMENT = 8
_BLANK = "0" * 64


def pack_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return tensors, with metadata in the header; the widest dtypes come first, for alignment.

    >>> from safetensors.torch import load
    >>> load(pack_tensors({"w": torch.tensor([1.0, -2.0])}, {"of": "round 3"}))["w"]
    tensor([ 1., -2.])
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    parts, start = [], 0
    for name, tensor in sorted(tensors.items(), key=_sort_key):
        if tensor.dtype not in DTYPE_NAMES:
            raise ModelError(f"{name!r} is {tensor.dtype}, which cannot be stored; use float or integer")
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
    """Return the same with a SHA-256 in the header: of all bytes, with zeros in place of the digest.

    >>> require_digest(pack_with_digest({"w": torch.tensor([1.0])}, {"of": "round 3"}))
    """
    body = pack_tensors(tensors, {"digest": _BLANK, **metadata})
    return body.replace(_BLANK.encode(), hashlib.sha256(body).hexdigest().encode(), 1)


def require_digest(body: bytes) -> None:
    """Raise ValueError if a body is not what `pack_with_digest` returned, to the bit."""
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


def byte_size(tensors: Iterable[Tensor]) -> int:
    """Return how many bytes the numbers of tensors take.

    >>> byte_size([torch.zeros(3), torch.zeros(2, dtype=torch.int8)])
    14
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def tensors_below(tensors: Mapping[str, Tensor], group: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a group's, without it.

    >>> list(tensors_below({"weights.0.bias": torch.zeros(1), "optimizer.step": torch.zeros(1)}, "weights"))
    ['0.bias']
    """
    prefix = f"{group}."
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes, without a copy if it is contiguous."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def read_plain(path: Path) -> bytes:
    """Return the content of a file, also through a link; refuse devices and pipes, which may never end."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    with path.open("rb") as file:
        try:
            return file.read(about.st_size)
        except (MemoryError, OverflowError) as error:
            raise OSError(errno.EFBIG, f"its {about.st_size} bytes do not fit into memory") from error


def write_atomically(path: Path, content: bytes, previous: Path | None = None) -> None:
    """Replace a file so that a reader, or a crash, finds the old or the new file, never a part of it.

    With `previous`, the old file is kept under that name; after a crash it may be the only one.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
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
