"""The label's classes and the task are found from its values."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from fedilc.data.tables.silo_tables import TableSettings, read_tables, tables_of


def test_a_label_may_be_a_comparison(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,num\n1,0\n2,3\n3,1\n")
    found = read_tables([tmp_path / "a.csv"], TableSettings(label="num>0"))
    assert found.silos["a"].y.tolist() == [0, 1, 1]
    assert found.label.classes == ("num<=0", "num>0")
    assert found.fit(["a"]).columns == ("age",)


@pytest.mark.parametrize(
    ("values", "loss", "classes"),
    [
        ([0, 1, 1], "binary", ("0", "1")),
        (["low", "mid", "top"], "multiclass", ("low", "mid", "top")),
        ([2, 10, 3], "multiclass", ("2", "3", "10")),
        ([0.5, 1.25, 3.0], "regression", ()),
    ],
)
def test_the_task_is_found_from_the_label(values: list[object], loss: str, classes: tuple[str, ...]) -> None:
    found = tables_of({"s": pl.DataFrame({"a": [1, 2, 3], "y": values})}, TableSettings(label="y"))
    assert (found.label.loss, found.label.classes) == (loss, classes)
