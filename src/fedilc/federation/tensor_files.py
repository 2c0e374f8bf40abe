"""Write files completely or not at all; files of tensors have a digest that shows damage."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedilc.errors import CheckpointError
from fedilc.federation.tensor_bytes import pack_with_digest, require_digest


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
        body = path.read_bytes()
        size = int.from_bytes(body[:8], "little")
        metadata = json.loads(body[8 : 8 + size])["__metadata__"]
        if set(metadata) != {"fedilc"}:
            require_digest(body)
        return load(body), json.loads(metadata["fedilc"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(
            f"{path} is damaged or not a FedILC checkpoint ({reason}); restore it from a copy, or "
            "start again in another folder"
        ) from error
