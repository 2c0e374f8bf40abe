"""What is known of silos before training: how they differ, what that suggests, and files that keep it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hospitals import hospitals, study_table

from fedilc.data import Federation, Silo
from fedilc.data.tables.silo_tables import SiloTables
from fedilc.errors import CheckpointError, ConfigError, DataError
from fedilc.studies.inspection import (
    AtStart,
    at_start,
    inspect_run,
    inspect_tables,
    read_inspection,
    write_inspection,
)


@pytest.fixture
def tables(tmp_path: Path) -> SiloTables:
    return study_table(tmp_path, hospitals(3)).tables


def test_silos_that_are_alike_may_be_averaged_and_others_are_to_be_compared(
    tables: SiloTables, tmp_path: Path
) -> None:
    alike = replace(inspect_tables("patients", tables), at_start=None)
    assert alike.suggestion().startswith("The silos look alike: averaging")
    there = pl.col("hospital") == "H2"
    frame = hospitals(3).with_columns(pl.when(there).then(pl.lit("99")).otherwise(pl.col("age")).alias("age"))
    shifted = inspect_tables("patients", study_table(tmp_path, frame, "shifted").tables)
    assert "columns differ much (age" in shifted.suggestion()
    assert shifted.suggestion().endswith("on silos left out (fedilc study).")
    elsewhere = replace(shifted, at_start=None)
    assert elsewhere.suggestion().endswith("left out (serve a run without each of them in turn).")
    low = replace(alike, at_start=AtStart(0.2, 0.5, 9.0, ("H0", "H1")))
    assert low.suggestion().startswith("The silos' gradients often disagree at the start: ")


def test_an_inspection_is_read_back_as_it_was_written_without_any_row(
    tables: SiloTables, tmp_path: Path
) -> None:
    found = inspect_tables("patients", tables)
    write_inspection(tmp_path / "new", found)
    assert read_inspection(tmp_path / "new") == found
    assert "p0-1" not in (tmp_path / "new" / "inspection.json").read_text()  # a patient's name
    (tmp_path / "new" / "inspection.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"inspection.json is damaged .*; inspect the tables again"):
        read_inspection(tmp_path / "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_inspection(tmp_path / "file", found)


def test_one_silo_is_compared_with_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="an inspection compares silos, and patients has one, 'H0'"):
        inspect_tables("patients", study_table(tmp_path, hospitals(1)).tables)


def test_signs_of_equal_silos_agree_and_of_opposite_ones_do_not() -> None:
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).float()
    same = at_start(Federation("same", [Silo("a", x, y), Silo("b", x, y)]), 0)
    assert same.agreement == pytest.approx(1.0)
    assert same.worst == pytest.approx(1.0)
    assert same.expected == 0.5  # two random signs are alike half of the time
    opposite = at_start(Federation("opposite", [Silo("a", x, y), Silo("b", x, 1 - y)]), 0)
    assert opposite.agreement < same.agreement
    assert at_start(Federation("four", [Silo(n, x, y) for n in "abcd"]), 0).expected == np.mean(
        [abs(sum(signs)) / 4 for signs in np.ndindex(2, 2, 2, 2) for signs in [2 * np.array(signs) - 1]]
    )


def test_a_folder_without_summaries_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, CheckpointError), match=str(tmp_path)):
        inspect_run(tmp_path)
