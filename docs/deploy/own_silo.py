"""A hospital's own code, for `--provider own_silo:make_silo` and `--model own_silo:build`.

Both run on the hospital's machine, from its own file. Nothing here is sent, and nothing like it is received.
"""

from __future__ import annotations

import polars as pl
from torch import Tensor, nn

from fedilc import Silo

COLUMNS = ["age", "female", "heart_rate", "systolic", "lactate", "transferred"]


def make_silo(name: str) -> Silo:
    """Return the silo, here from a table whose last 300 rows are for validation."""
    table = pl.read_parquet("south.parquet")
    train, held_out = table.head(-300), table.tail(300)
    return Silo(name, *_tensors(train), *_tensors(held_out))


def _tensors(table: pl.DataFrame) -> tuple[Tensor, Tensor]:
    return table.select(COLUMNS).cast(pl.Float32).to_torch(), table["died"].cast(pl.Float32).to_torch()


def build() -> nn.Module:
    """Return the network of the manifest, with the same parameters by name and shape."""
    return nn.Sequential(
        *[nn.Flatten(), nn.Linear(6, 32), nn.ReLU()],
        *[nn.Linear(32, 32), nn.ReLU()],
        nn.Linear(32, 1),
    )
