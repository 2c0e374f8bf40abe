"""Runs that the tests of several commands use."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import fedilc
from small_runs import SMALL

from fedilc.errors import FedILCWarning


def patients(rows: int, seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    age = random.normal(60, 10, rows).round(1)
    sex = random.choice(["m", "f"], rows)
    risk = (age - 60) / 10 + (sex == "m") + random.normal(size=rows)
    cells = np.where(random.random(rows) < 0.2, "?", age.astype(str))
    return pl.DataFrame(
        {
            "hospital": [f"h{i % 3}" for i in range(rows)],
            "age": cells,
            "sex": sex,
            "died": np.where(risk > 0.5, 1, 0),
        }
    )


@pytest.fixture(scope="session")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that no test changes; its table, patients.csv, is beside it."""
    folder = tmp_path_factory.mktemp("tables")
    patients(150, 0).write_csv(folder / "patients.csv", separator=";")
    (folder / "e.toml").write_text(
        'rounds = 4\nlearning_rate = 0.05\nalgorithm = "fedsgd"\n[data]\nsource = "tables"\n'
        'files = "patients.csv"\nsilo_column = "hospital"\nlabel = "died"\ntest = "h2"\n'
        '[model]\nname = "mlp"\nhidden = [4]\n'
    )
    with pytest.warns(FedILCWarning, match="separated by ';'"):
        fedilc("run", folder / "e.toml", "--out", folder / "run")
    return folder / "run"


@pytest.fixture
def new_rows(tmp_path: Path) -> Path:
    """Patients held out of the run, with a column that it does not know."""
    patients(30, 5).with_columns(pl.int_range(30).alias("mrn")).write_csv(tmp_path / "new.csv")
    return tmp_path / "new.csv"


@pytest.fixture
def site_rows(tmp_path: Path) -> Path:
    """A site with enough patients for a learning curve."""
    patients(160, 7).with_columns(pl.int_range(160).alias("mrn")).write_csv(tmp_path / "site.csv")
    return tmp_path / "site.csv"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of three rounds that no test changes, and what it printed."""
    out = tmp_path_factory.mktemp("finished") / "run"
    return out, fedilc("run", "color-digits", "--rounds", 3, "--out", out, *SMALL)


@pytest.fixture
def copy(finished: tuple[Path, str], tmp_path: Path) -> Path:
    """That run again, to be spoilt."""
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A comparison of the paper's six algorithms that no test changes, and what it printed."""
    out = tmp_path_factory.mktemp("compared") / "all"
    return out, fedilc("run", "color-digits", "--algorithm", "all", "--rounds", 2, "--out", out, *SMALL)
