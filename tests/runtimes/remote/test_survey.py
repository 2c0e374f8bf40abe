"""A silo's owner decides what a survey learns: columns, floors, rounding; identifiers never leave."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedilc.config import parse_experiment
from fedilc.data.sources import RemoteTables
from fedilc.data.tables.label_rule import LabelRule
from fedilc.data.tables.silo_summary import SiloSummary, summarise
from fedilc.data.tables.summary_checks import check_summary, summary_lines
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import ConfigError, ProtocolError
from fedilc.runtimes.remote.run import RemoteRun
from fedilc.runtimes.remote.survey import Survey, SurveyLimits, read_survey, silo_from_table, summarise_table

ROWS = 300
MODEL = {"name": "mlp", "hidden": [4]}


def patients() -> pl.DataFrame:
    random = np.random.default_rng(7)
    wards = ["surgical"] * 150 + ["medical"] * 146 + ["burns"] * 4
    return pl.DataFrame(
        {
            "mrn": random.permutation(np.arange(700_000, 700_000 + ROWS)),
            "name": [f"Patient Number-{place}" for place in range(ROWS)],
            "age": random.normal(60, 10, ROWS).round(1),
            "ward": wards,
            "dose": [31337.25, 2.5, *[None] * (ROWS - 2)],
            "died": random.choice(["no", "yes"], ROWS),
        }
    )


def survey(**table: object) -> Survey:
    values = {"silos": ["a"], "label": "died", "categorical": ["mrn", "name"], "keep": ["mrn"]} | table
    return Survey.of("study", RemoteTables.model_validate(values))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    patients().write_csv(tmp_path / "a.csv")
    return tmp_path / "a.csv"


def test_no_identifier_leaves_a_silo_whatever_the_coordinator_declares(table: Path) -> None:
    found = summarise_table("a", table, survey())
    for name in ("mrn", "name"):
        column = found.column(name)
        assert column is not None
        assert column.identifier
        assert column.levels is None
        assert column.sums == (0, 0, 0)
    text = found.model_dump_json()
    assert "Patient" not in text
    assert not any(str(number) in text for number in range(700_000, 700_000 + ROWS))


def test_no_category_and_no_sum_of_fewer_than_ten_rows_leaves_a_silo(table: Path) -> None:
    found = summarise_table("a", table, survey())
    ward, dose = found.column("ward"), found.column("dose")
    assert ward is not None
    assert dose is not None
    assert (ward.levels, ward.other) == (("medical", "surgical"), True)
    assert (dose.count, dose.sums) == (2, (0, 0, 0))
    assert (dose.levels, dose.other) == ((), True)


def test_a_histogram_is_sent_only_if_the_run_asks_and_has_ten_rows_or_more_in_each_group(table: Path) -> None:
    assert all(
        "histogram" not in one for one in summarise_table("a", table, survey()).model_dump()["columns"]
    )
    found = summarise_table("a", table, survey(scaling="robust"))
    check_summary(found, TableSettings(label="died"))
    for column in found.columns:
        assert (column.histogram is not None) == (column.numbers > 0)
    age = found.column("age")
    assert age is not None
    assert age.histogram is not None
    assert min(rows for _, rows in age.histogram) >= 10
    assert "of these numbers " in "\n".join(summary_lines(found, "died", 10))
    ages = np.sort(patients()["age"].to_numpy())
    assert age.histogram[0][0] > ages[3]  # the lowest values are not named
    assert age.histogram[-1][0] < ages[-4]
    unlike = survey(scaling="robust", round_survey=20)
    assert all(rows % 20 == 0 for _, rows in summarise_table("a", table, unlike).column("age").histogram)  # type: ignore[union-attr]


def test_the_owner_lists_the_columns_and_nothing_else_is_mentioned(table: Path) -> None:
    limits = SurveyLimits(columns=("age", "died"))
    found = summarise_table("a", table, survey(), limits)
    assert [column.name for column in found.columns] == ["age"]
    for word in ("mrn", "ward", "dose"):
        assert word not in found.model_dump_json()
    with pytest.raises(ConfigError, match="label is the column 'died', which `columns` does not list"):
        summarise_table("a", table, survey(), SurveyLimits(columns=("age",)))
    with pytest.raises(ConfigError, match="`columns` names 'agee', which the table does not have"):
        summarise_table("a", table, survey(), SurveyLimits(columns=("agee", "died")))


def test_a_number_that_looks_like_an_identifier_is_summed_only_if_run_and_owner_name_it(table: Path) -> None:
    both = summarise_table("a", table, survey(), SurveyLimits(columns=("mrn", "died"))).column("mrn")
    owner = summarise_table("a", table, survey(keep=[]), SurveyLimits(columns=("mrn", "died"))).column("mrn")
    assert both is not None
    assert both.sums[0] == ROWS
    assert both.levels == ()
    assert owner is not None
    assert owner.identifier


def test_a_label_that_identifies_patients_is_refused_since_it_could_choose_one(table: Path) -> None:
    """Marks of missing values leave out rows by their label: two surveys would differ by one patient."""
    for label in ("mrn", "mrn==700005", "name"):
        asked = survey(label=label, missing=["mrn=700005"], keep=[])
        with pytest.raises(ConfigError, match="identifier, so that it could single out patients"):
            summarise_table("a", table, asked)
        with pytest.raises(ConfigError, match="nothing was sent"):
            summarise_table("a", table, asked, SurveyLimits(columns=("name", "died", "mrn"), min_rows=1))
    assert summarise_table("a", table, survey(label="age")).rows == ROWS
    both = SurveyLimits(columns=("mrn", "age"))
    assert summarise_table("a", table, survey(label="mrn", keep=["mrn"]), both).rows == ROWS


def test_names_of_patients_who_have_many_rows_each_do_not_leave_a_silo(table: Path) -> None:
    """Ten rows are not ten patients in a table of visits."""
    visits = patients().with_columns(
        pl.Series("Patient_Name", [f"Jo Doe-{place // 15}" for place in range(ROWS)]),
        pl.Series("patient id", [880_000 + place // 15 for place in range(ROWS)]),
    )
    visits.write_csv(table)
    names = ["Patient_Name", "patient id"]
    text = summarise_table("a", table, survey(categorical=names, keep=names)).model_dump_json()
    assert "Jo Doe" not in text
    assert "8800" not in text
    owner = SurveyLimits(columns=(*names, "died"))
    assert "Jo Doe-3" in summarise_table("a", table, survey(keep=names), owner).model_dump_json()


def test_a_small_table_needs_its_owner_who_is_told_what_its_sums_reveal(table: Path) -> None:
    patients()[:30].write_csv(table)
    with pytest.raises(ConfigError, match=r"30 rows .* 50 .* nothing was sent.* over 30 patients or fewer"):
        summarise_table("a", table, survey())
    limits = SurveyLimits(min_rows=30)
    assert summarise_table("a", table, survey(), limits).rows == 30
    assert "the values of the last one" in (limits.warning(30) or "")
    assert limits.warning(50) is None


def test_a_silo_can_only_tighten_the_floors_of_a_run(table: Path) -> None:
    lax = TableSettings(label="died", min_category=1, round_survey=None)
    assert SurveyLimits().tightened(lax).min_category == 10
    assert SurveyLimits(min_category=20).tightened(lax).min_category == 20
    assert (
        SurveyLimits(min_category=20).tightened(lax.model_copy(update={"min_category": 40})).min_category
        == 40
    )
    rough = lax.model_copy(update={"round_survey": 20})
    assert [SurveyLimits(round_survey=unit).tightened(rough).round_survey for unit in (None, 5, 50)] == [
        20,
        20,
        50,
    ]
    with pytest.raises(ConfigError, match="fewer than the 400"):
        summarise_table("a", table, survey(min_rows=400))
    with pytest.raises(ValidationError, match="greater than or equal to 10"):
        survey(min_category=9)


def test_with_rounding_two_surveys_with_and_without_a_patient_are_the_same(table: Path) -> None:
    rough, exact = SurveyLimits(round_survey=20), SurveyLimits()
    columns = ("age", "ward", "died")

    def summary(frame: pl.DataFrame, limits: SurveyLimits) -> SiloSummary:
        frame.select(columns).write_csv(table)
        return summarise_table("a", table, survey(categorical=[], keep=[]), limits)

    frame = patients()
    extremes = frame["age"].arg_min(), frame["age"].arg_max()
    others = [place for place in range(ROWS) if place not in extremes]
    hidden = sum(
        summary(frame, rough).columns[0].total == summary(_without(frame, gone), rough).columns[0].total
        for gone in others[:20]
    )
    assert hidden >= 18  # a sum may lie beside the middle of two multiples
    assert (
        summary(frame, exact).columns[0].total != summary(_without(frame, others[0]), exact).columns[0].total
    )


def _without(frame: pl.DataFrame, place: int) -> pl.DataFrame:
    return pl.concat([frame[:place], frame[place + 1 :]])


values = st.one_of(st.floats(-1e6, 1e6), st.integers(-50, 50).map(float), st.none())


@given(st.lists(values, min_size=12, max_size=60), st.sampled_from([None, 2, 7, 10]), st.booleans())
def test_rounded_sums_stay_near_and_every_summary_of_a_table_is_believed(
    column: list[float | None], unit: int | None, sent: bool
) -> None:
    settings = TableSettings(label="y", min_rows=1, round_survey=unit)
    label = pl.Series("y", [place % 2 for place in range(len(column))])
    frame = pl.DataFrame({"x": pl.Series(column, dtype=pl.Float64)})
    found = summarise("a", frame, label, settings, sent=sent)
    check_summary(found, settings)
    count, total, squares = found.columns[0].sums
    numbers = [Fraction(value) for value in column if value is not None]
    if not count or found.columns[0].identifier:
        return
    mean = sum(numbers) / len(numbers)
    spread = sum((value - mean) ** 2 for value in numbers)
    step = (unit or 0) * (max(numbers) - min(numbers))
    assert abs(total - count * mean) <= step / 2
    own_spread = squares - total**2 / count
    wanted = spread * Fraction(count, len(numbers))
    assert abs(own_spread - wanted) <= step * (max(numbers) - min(numbers)) / 2 + Fraction(1, 10**250)


def test_a_manifest_that_makes_categories_of_an_identifier_is_refused_by_the_silo(table: Path) -> None:
    frame = patients().drop("dose")
    frame.write_csv(table)
    data = {"source": "remote-tables", "silos": ["a"], "label": "died", "keep": ["name"]}
    wanted = json.dumps([f"Patient Number-{place}" for place in range(3)])
    settings = TableSettings(label="died", keep=("name",), categories={"name": json.loads(wanted)})
    honest = summarise_table("a", table, survey())
    hostile = honest.model_copy(
        update={
            "columns": tuple(
                column.model_copy(update={"identifier": False})
                for column in honest.columns
                if column.name == "name"
            )
        }
    )
    from fedilc.data.tables.preprocessing import fit_preprocessing

    made = fit_preprocessing([hostile], settings.rule([honest.labels]), settings)
    base = {"name": "study", "rounds": 1, "learning_rate": 0.1, "model": MODEL, "data": data}
    manifest = RemoteRun.of(parse_experiment(base), table.parent, preprocessing=made).manifest
    with pytest.raises(ConfigError, match="categories of the column 'name', whose values or name are like"):
        silo_from_table("a", table, manifest, 0.3)
    unlisted = silo_from_table("a", table, manifest, 0.3, SurveyLimits(columns=("age", "died")))
    assert not unlisted.x[:, :3].any()


def test_a_label_of_the_wire_cannot_compare_by_anything_else() -> None:
    for wrong in ({"comparison": "~"}, {"classes": ["only"]}):
        with pytest.raises(ValidationError):
            LabelRule.model_validate({"text": "y", "column": "y", **wrong})


def test_a_survey_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ProtocolError, match="survey cannot be read"):
        read_survey({"run": "x", "silos": ["a"], "table": {"label": "y", "more": 1}})
