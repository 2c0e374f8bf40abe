"""Who is in a study: rows read and left out, events per input, and the variables of each site."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hospitals import hospitals, study_table
from hypothesis import given
from hypothesis import strategies as st
from slow_clinical import looped_difference

from fedilc.data import Federation, Silo
from fedilc.evaluation.estimates import Floors
from fedilc.report.clinical_tables import clinical_tables, contrast_table, flow_table, variables_table
from fedilc.studies.study.data import StudyArrays, study_data
from fedilc.studies.study.description import (
    describe_column,
    description,
    descriptions,
    flow,
    standardised_difference,
    variable,
)
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.settings import StudySettings

SETTINGS = StudySettings(algorithms=("fedavg",), references=False)
NUMBERS = st.lists(st.integers(-1000, 1000).map(float), min_size=2, max_size=30)


def facts(plan: StudyPlan) -> dict[str, object]:
    found = json.loads(json.dumps(description(plan, descriptions(plan.data)), allow_nan=False))
    held_out, silos = list(plan.held_out), dict.fromkeys(plan.data.silos)
    return {**found, "name": "patients", "held_out": held_out, "silos": silos, "loss": plan.data.loss}


def test_every_row_is_used_or_left_out_for_a_reason(tmp_path: Path) -> None:
    frame = hospitals(4, rows=40)
    place = pl.int_range(pl.len())
    frame = frame.with_columns(
        pl.when(place < 3).then(None).otherwise(pl.col("died")).alias("died"),
        pl.when((place >= 50) & (place < 57)).then(None).otherwise(pl.col("hospital")).alias("hospital"),
    )
    path = tmp_path / "patients.csv"
    frame.write_csv(path)
    data = study_data([str(path)], label="died", silo_column="hospital", exclude_site=["H3"])
    found = flow(data, descriptions(data))
    assert found["left_out"] == {"no site is named": 7, "the site 'H3' is excluded": 40}
    assert found["sites"]["H0"] == {"read": 40, "without_label": 3, "used": 37}
    assert found["sites"]["H1"] == {"read": 33, "without_label": 0, "used": 33}
    rows = {
        row[0].text: [cell.text for cell in row[1:]]
        for row in flow_table(facts(StudyPlan(data, SETTINGS)))[0].rows
    }
    assert rows["total"] == ["160", "3", "110"]
    assert rows["the site 'H3' is excluded"] == ["40", "-", "0"]


def test_the_file_of_an_excluded_site_is_not_read(tmp_path: Path) -> None:
    for name, part in hospitals(3, rows=30).partition_by("hospital", as_dict=True, include_key=False).items():
        part.write_csv(tmp_path / f"{name[0]}.csv")
    paths = [str(tmp_path / f"H{number}.csv") for number in range(3)]
    data = study_data(paths, label="died", exclude_site=["H2"])
    found = flow(data, descriptions(data))
    assert found["left_out"] == {"the site 'H2' is excluded": None}
    assert sum(site["used"] for site in found["sites"].values()) == 60


def test_sites_that_are_excluded_from_a_data_set_are_counted() -> None:
    data = study_data(["heart-disease"], exclude_site=["va"])
    found = flow(data, descriptions(data))
    assert found["left_out"] == {"the site 'va' is excluded": 200}
    assert sum(site["used"] for site in found["sites"].values()) == 920 - 200


def test_events_per_input_are_those_of_the_rarer_outcome_at_the_other_sites(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(4, rows=40))
    [first, *_] = description(StudyPlan(data, SETTINGS), {})["development"]
    y = np.concatenate([data.labels[site] for site in ("H1", "H2", "H3")])
    inputs = data.inputs(["H1", "H2", "H3"], "H0").shape[1]
    events = min(y.sum(), len(y) - y.sum())
    assert first["held_out"] == "H0"
    assert (first["examples"], first["informing"], first["inputs"]) == (120, events, inputs)
    assert first["per_input"] == pytest.approx(events / inputs)


def test_variables_are_those_of_the_table(tmp_path: Path) -> None:
    frame = hospitals(4, rows=40)
    found = facts(StudyPlan(study_table(tmp_path, frame), SETTINGS))
    by_name = {one["name"]: one for one in found["variables"]}
    assert list(by_name) == ["age", "sex", "lactate"]
    site = frame.filter(hospital="H1")
    age = site["age"].cast(pl.Float64, strict=False)
    assert by_name["age"]["sites"]["H1"]["missing"] == age.null_count()
    assert by_name["age"]["sites"]["H1"]["quartiles"] == pytest.approx(
        np.percentile(age.drop_nulls(), [25, 50, 75])
    )
    assert by_name["sex"]["all"]["counts"] == dict(frame["sex"].value_counts().sort("sex").iter_rows())
    lactate = frame.with_columns(pl.col("lactate").replace(-9, None))
    held, others = (
        lactate.filter(rows)["lactate"].drop_nulls()
        for rows in (pl.col("hospital") == "H1", pl.col("hospital") != "H1")
    )
    assert by_name["lactate"]["differences"]["H1"] == pytest.approx(
        looped_difference(held.to_list(), others.to_list())
    )
    table = variables_table(found)[0]
    assert [column.title for column in table.columns] == ["variable", "", "all sites", "H0", "H1", "H2", "H3"]
    men = next(row for row in table.rows if row[1].text == "m")
    count = int((site["sex"] == "m").sum())
    assert men[4].text == f"{count} ({count / 40:.0%})"
    contrast = contrast_table(found)[0]
    assert {row[0].text for row in contrast.rows} == {"H0", "H1", "H2", "H3"}


def difference(*groups: pl.Series) -> float | None:
    found = [describe_column("x", group) for group in groups]
    if groups[0].dtype.is_numeric():
        found = [one.model_copy(update={"counts": None}) for one in found]
    return standardised_difference(*found)


@given(NUMBERS, NUMBERS, st.floats(0.1, 10), st.floats(-5, 5))
def test_the_difference_is_that_of_loops_and_has_no_unit(
    one: list[float], other: list[float], scale: float, shift: float
) -> None:
    if len(set(one)) < 2:
        return
    found = difference(pl.Series(one), pl.Series(other))
    assert found == pytest.approx(looped_difference(one, other))
    moved = [pl.Series([scale * value + shift for value in values]) for values in (one, other)]
    assert difference(*moved) == pytest.approx(found, rel=1e-6, abs=1e-6)
    assert difference(pl.Series(other), pl.Series(one)) == pytest.approx(-found)


@given(st.lists(st.sampled_from("abc"), min_size=1), st.lists(st.sampled_from("abc"), min_size=1))
def test_that_of_categories_is_the_largest_of_their_indicators(one: list[str], other: list[str]) -> None:
    found = difference(pl.Series(one), pl.Series(other))
    expected = []
    for name in set(one) | set(other):
        indicators = [[float(value == name) for value in values] for values in (one, other)]
        if len({*indicators[0], *indicators[1]}) > 1 and all(len(set(values)) == 1 for values in indicators):
            assert found is None
            return
        same = len({*indicators[0], *indicators[1]}) == 1
        expected.append(0.0 if same else abs(looped_difference(*indicators)))
    assert found == pytest.approx(max(expected))


def test_few_different_numbers_are_counted_and_a_column_without_values_is_missing() -> None:
    columns = {"a": pl.Series([0.0, 1.0, 1.0]), "b": pl.Series([None, None], dtype=pl.Float64)}
    found = variable({site: describe_column("x", values) for site, values in columns.items()}, ["a"])
    assert found["sites"]["a"]["counts"] == {"0": 1, "1": 2}
    assert found["sites"]["b"]["missing"] == 2
    assert found["differences"]["a"] is None


def test_a_mean_does_not_tell_a_count_that_the_floor_hides() -> None:
    sex = pl.Series("sex", [1.0] * 30 + [0.0] * 3)
    assert describe_column("sex", sex).mean == pytest.approx(10 / 11)
    found = describe_column("sex", sex, Floors(min_cell=10))
    assert (found.counts, found.mean, found.deviation) == ({}, None, None)


def test_pictures_have_a_flow_without_variables() -> None:
    silos = [Silo(name, torch.zeros(6, 1, 8, 8), [0, 1] * 3) for name in "abc"]
    found = facts(StudyPlan(StudyArrays.of(Federation("pictures", silos)), SETTINGS))
    assert "variables" not in found
    assert found["development"][0]["inputs"] is None
    assert [table.name for table in clinical_tables(found)] == ["flow", "development"]


def test_a_study_of_an_older_version_has_none_of_these_tables() -> None:
    assert clinical_tables({"name": "old", "silos": {}, "held_out": ["a"], "loss": "binary"}) == []
