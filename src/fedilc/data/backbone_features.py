"""Features of picture files: computed once, kept in the user's cache, and found there by digests.

A cache folder belongs to one backbone (by its digest) and one size and kind of pictures. Its files hold
blocks of features with the SHA-256 of each picture file, so interrupted work continues after the last block,
and a picture that was added or changed costs only itself. Features are written for this user alone to read.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedilc.data.backbones import BATCH, Backbone
from fedilc.data.download import cache_folder
from fedilc.errors import CheckpointError, FedILCWarning
from fedilc.progress import tell
from fedilc.storage.files import read_tensors, write_tensors

BLOCK = 4 * BATCH


def file_features(
    backbone: Backbone, size: int, files: Sequence[Path], read: Callable[[Path], NDArray[np.float32]]
) -> Tensor:
    """Return the features of picture files; `read` gives the pixels of a file, at this size."""
    names = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    folder = cache_folder() / "features" / f"{backbone.digest[:32]}-{size}"
    known = _cached(folder, set(names))
    new = {name: path for name, path in zip(names, files, strict=True) if name not in known}
    done, pending = len(known), list(new.items())
    for start in range(0, len(pending), BLOCK):
        part = pending[start : start + BLOCK]
        found = _features(backbone, [path for _, path in part], read)
        _keep(folder, [name for name, _ in part], found)
        known |= dict(zip((name for name, _ in part), found, strict=True))
        done += len(part)
        tell("features of pictures", done, len(known) + len(pending) - start - len(part))
    return torch.stack([known[name] for name in names])


def _features(
    backbone: Backbone, files: Sequence[Path], read: Callable[[Path], NDArray[np.float32]]
) -> Tensor:
    batches = [files[start : start + BATCH] for start in range(0, len(files), BATCH)]
    return torch.cat(
        [backbone.features(torch.from_numpy(np.stack([read(path) for path in batch]))) for batch in batches]
    )


def _cached(folder: Path, wanted: set[str]) -> dict[str, Tensor]:
    """Return the features of wanted pictures that are in the cache; a damaged file is deleted."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            tensors, about = read_tensors(path)
        except CheckpointError:
            path.unlink(missing_ok=True)
            continue
        rows = zip(about["pictures"], tensors["features"], strict=True)
        found |= {name: row for name, row in rows if name in wanted}
    return found


def _keep(folder: Path, names: Sequence[str], features: Tensor) -> None:
    """Write a block to the cache; without a cache that can be written, features are computed each time."""
    block = hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{block}.safetensors"
        write_tensors(path, {"features": features}, {"pictures": list(names)})
        path.chmod(0o600)
    except OSError as error:
        warnings.warn(
            f"features of pictures are not kept, because {folder} cannot be written: {error.strerror}",
            FedILCWarning,
            stacklevel=4,
        )
