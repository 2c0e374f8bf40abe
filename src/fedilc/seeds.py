"""Derive seeds from the run's seed and a purpose, so that no two uses share a random stream.

The random choices of a silo (batches, environments, repeated examples) are seeded by its name, so that they
do not depend on which other silos take part, or on their order. A silo that is renamed makes other choices,
which changes the bits of a run with batches, but not those of full-batch gradients.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


def seed_for(run_seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose of one run, the same on every machine.

    >>> seed_for(0, "model") == seed_for(0, "model")
    True
    >>> seed_for(0, 3, "hospital-a", "environments") == seed_for(0, 3, "hospital-b", "environments")
    False
    """
    text = "\x1f".join(str(part) for part in (run_seed, *purpose))
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def torch_generator(run_seed: int, *purpose: str | int) -> torch.Generator:
    """Return a torch generator on the CPU for one purpose of one run."""
    import torch

    return torch.Generator().manual_seed(seed_for(run_seed, *purpose))


def numpy_generator(run_seed: int, *purpose: str | int) -> np.random.Generator:
    """Return a NumPy generator for one purpose of one run."""
    import numpy as np

    return np.random.default_rng(seed_for(run_seed, *purpose))
