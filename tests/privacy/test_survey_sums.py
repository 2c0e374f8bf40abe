"""The summary of all silos together gives the preprocessing that their own summaries give."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedilc.data.tables.preprocessing import Preprocessing, fit_preprocessing
from fedilc.data.tables.silo_summary import SiloSummary, summarise
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import ConfigError, DataError, ProtocolError
from fedilc.privacy.survey_sums import DIGITS, FEW, SurveyForm, digits_of, whole_of

SETTINGS: dict[str, Any] = {
    "label": "died",
    "columns": ("age", "stage", "lab", "sex", "odd", "rare", "died"),
    "categories": {"stage": ["1", "2", "3"], "sex": ["f", "m"], "died": ["no", "yes"]},
}


def table_of(rows: int, seed: int) -> tuple[pl.DataFrame, pl.Series]:
    random = np.random.default_rng(seed)
    age = random.normal(60, 10, rows).round(1)
    frame = pl.DataFrame(
        {
            "age": np.where(random.random(rows) < 0.2, "?", age.astype(str)),
            "stage": random.integers(1, 4, rows),
            "lab": random.lognormal(0, 3, rows) * 1e-6,
            "sex": random.choice(["m", "f"], rows),
            "odd": random.normal(0, 1, rows) if seed % 2 else np.full(rows, None, float),
            "rare": np.where(np.arange(rows) < 12, 1.5, np.nan) if seed == 0 else np.full(rows, np.nan),
        }
    )
    return frame, pl.Series(np.where(random.random(rows) < 0.5, "yes", "no"))


def summed(form: SurveyForm, summaries: list[SiloSummary]) -> SiloSummary:
    flags = np.zeros(form.words(None), np.uint32)
    for summary in summaries:
        flags += form.flags(summary)
    kept = form.kept(flags)
    values = np.zeros(form.words(kept), np.uint64)
    for summary in summaries:
        values += form.values(summary, kept)
    return form.summary(flags, kept, values)


def both(table: TableSettings, silos: int, seed: int) -> tuple[Preprocessing, Preprocessing]:
    """The preprocessing of all summaries, and that of their sums."""
    found = []
    for place in range(silos):
        frame, label = table_of(80 + 7 * place, seed + place)
        features = frame.select(name for name in frame.columns if table.uses(name))
        found.append(summarise(f"silo-{place}", features, label, table, sent=True))
    plain = fit_preprocessing(found, table.rule([one.labels for one in found]), table)
    form = SurveyForm(table)
    form.require_declared()
    return plain, form.preprocessing(summed(form, found))


@given(st.integers(0, 10**6), st.integers(6, 9))
@settings(max_examples=10, deadline=None)
def test_sums_give_the_preprocessing_of_all_summaries_to_the_bit(seed: int, silos: int) -> None:
    plain, secure = both(TableSettings(**SETTINGS), silos, 2 * seed + 2)
    assert secure.features == plain.features
    assert secure.label == plain.label
    assert secure.left_out == {**plain.left_out, "rare": FEW}


def test_values_of_fewer_than_three_silos_are_not_in_the_words() -> None:
    table = TableSettings(**SETTINGS)
    form = SurveyForm(table)
    found = [summarise(str(seed), *table_of(80, seed), table, sent=True) for seed in range(5)]
    plain = summed(form, found)
    assert {column.name for column in plain.columns if not column.count} == {"odd", "rare"}
    flags = sum((form.flags(one) for one in found), np.zeros(form.words(None), np.uint32))
    kept = form.kept(flags)
    columns = [
        c.model_copy(update={"total": "99", "squares": "999", "count": 77}) if c.name == "rare" else c
        for c in found[0].columns
    ]
    other = found[0].model_copy(update={"columns": tuple(columns)})
    assert np.array_equal(form.values(found[0], kept), form.values(other, kept))


@given(st.lists(st.fractions(-(2**250), 2**250, max_denominator=2**200), min_size=1, max_size=100))
@settings(max_examples=50, deadline=None)
def testdigits_of_add_up_to_the_sum(values: list[Fraction]) -> None:
    dyadic = [Fraction(round(value * 2**220), 2**220) for value in values]
    words = np.zeros(DIGITS, np.uint64)
    for value in dyadic:
        words += np.array(digits_of(value), np.uint64)
    assert whole_of(iter(words.tolist())) == sum(dyadic, Fraction(0))


def test_a_sum_beyond_any_tables_is_refused() -> None:
    with pytest.raises(ProtocolError, match="larger than that of any tables"):
        whole_of(iter([0] * (DIGITS - 1) + [1 << 31]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"columns": ()}, "data.columns"),
        ({"scaling": "robust"}, "scaling='moments'"),
        ({"categories": {"sex": ["f", "m"]}}, "data.categories.died"),
        ({"categorical": ("odd",)}, "categories of odd"),
    ],
)
def test_what_sums_cannot_tell_must_be_declared(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        SurveyForm(TableSettings(**{**SETTINGS, **change})).require_declared()


def test_columns_of_names_without_categories_are_named() -> None:
    categories = {"died": ["no", "yes"], "stage": ["1", "2", "3"]}
    with pytest.raises(DataError, match="columns sex hold names"):
        both(TableSettings(**{**SETTINGS, "categories": categories}), 5, 2)


def test_a_class_that_the_run_does_not_list_is_refused_at_the_silo() -> None:
    table = TableSettings(**{**SETTINGS, "categories": {"died": ["no", "maybe"]}})
    frame, label = table_of(80, 1)
    with pytest.raises(ConfigError, match="has the value 'yes' here"):
        SurveyForm(table).flags(summarise("a", frame, label, table, sent=True))
