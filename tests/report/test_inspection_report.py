"""An inspection as tables and a picture: the silos, and the columns and pairs that differ most."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hospitals import hospitals, study_table

from fedilc.report.inspection_report import inspection_picture, inspection_tables, shift_shares
from fedilc.studies.inspection import Inspection, inspect_tables


@pytest.fixture
def found(tmp_path: Path) -> Inspection:
    """Three hospitals; H2's patients are 40 years older, and it never measures lactate."""
    there = pl.col("hospital") == "H2"
    years = pl.col("age").cast(float, strict=False)
    frame = hospitals(3).with_columns(
        pl.when(there).then(years + 40).otherwise(years).alias("age"),
        pl.when(there).then(-9.0).otherwise(pl.col("lactate")).alias("lactate"),
    )
    return inspect_tables("patients", study_table(tmp_path, frame).tables)


def test_the_tables_show_silos_columns_and_pairs_the_largest_shift_first(found: Inspection) -> None:
    silos, columns, pairs = inspection_tables(found)
    assert [row[0].text for row in silos.rows] == ["H0", "H1", "H2"]
    assert [row[1].text for row in silos.rows] == ["40", "40", "40"]
    assert [row[-1].text for row in silos.rows] == ["-", "-", "lactate"]
    assert (columns.rows[0][0].text, columns.rows[0][0].bold) == ("age", True)
    assert "H2" in columns.rows[0][3].text
    assert columns.rows[-1][1].text != "-" or columns.rows[-1][2].text == "-"
    assert "H2" in pairs.rows[0][0].text
    assert "the signs of the silos' gradients agree to" in pairs.notes[0]


def test_shares_are_by_silo_and_column_and_a_column_without_values_has_no_shift(found: Inspection) -> None:
    names, means, missing = shift_shares(found)
    age, lactate = names.index("age"), names.index("lactate")
    assert means[2][age] > 1.0 > max(means[0][age], means[1][age])
    assert np.isnan(means[2][lactate])
    assert missing[2][lactate] == 1.0


def test_the_picture_is_written(found: Inspection, tmp_path: Path) -> None:
    inspection_picture(tmp_path / "shift.png", found)
    assert (tmp_path / "shift.png").stat().st_size > 1000
