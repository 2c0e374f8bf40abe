"""A silo that joins with its own file says what is odd about it, and its name does not choose its split."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from fedilc.config.user_sources import Files
from fedilc.data import Silo
from fedilc.errors import FedILCWarning
from fedilc.runtimes.remote.builders import silo_from_file


def table(folder: Path, **more: object) -> Path:
    random = np.random.default_rng(0)
    columns = {"age": random.integers(20, 90, 40), "dose": random.normal(size=40), "label": np.arange(40) % 2}
    pl.DataFrame(columns | more).write_csv(folder / "own.csv")
    return folder / "own.csv"


def joined(name: str, path: Path) -> Silo:
    manifest: Any = SimpleNamespace(columns=["age", "dose"], seed=3, loss="binary", preprocessing=None)
    return silo_from_file(name, path, "label", 0.3, lambda _: None)(manifest)


def test_the_split_of_a_silo_that_joins_is_that_of_a_run_here_whatever_its_name(tmp_path: Path) -> None:
    path = table(tmp_path)
    here = Files(silos="own.csv").store(3, tmp_path).open("own")
    for name in ("own", "north"):
        there = joined(name, path)
        assert there.x_val is not None
        assert here.x_val is not None
        assert there.x_val.tolist() == here.x_val.tolist()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"age": [-99] * 4 + list(range(20, 56))}, "-99 probably means a missing value in column 'age'"),
        ({"age": list(range(40))}, "column 'age' differs in every row"),
        ({"label": [1] * 40}, r"silo 'north' \(label 1\) has training examples of one class only"),
    ],
    ids=["code", "identifier", "one class"],
)
def test_a_silo_that_joins_is_told_what_is_odd_about_its_file(
    tmp_path: Path, more: dict[str, object], said: str
) -> None:
    with pytest.warns(FedILCWarning, match=said):
        joined("north", table(tmp_path, **more))
