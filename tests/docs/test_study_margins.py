"""The rules that the benchmark compares are the study's own, and its committed tables are of its rows."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from benchmarks.study_margins import REGRESSION, STUDY, Rule, gain_of, page, taken
from hypothesis import given
from hypothesis import strategies as st

from fedilc.studies.study.choice import CLEARLY, LEAST_GAIN, Choice, chosen_method

RESULTS = Path(__file__).parents[2] / "results" / "study-defaults"
LOSSES = st.lists(st.floats(0.3, 0.7), min_size=3, max_size=3)


def test_the_tables_are_those_of_the_rows() -> None:
    with (RESULTS / "margins.csv").open(encoding="utf-8") as file:
        assert (RESULTS / "margins.md").read_text(encoding="utf-8") == page(list(csv.DictReader(file)))


@given(LOSSES, LOSSES)
def test_a_rule_takes_what_a_study_takes(plain: list[float], other: list[float]) -> None:
    choices = {
        name: Choice({}, 1, float(np.mean(losses)), {}, dict(zip("abc", losses, strict=True)))
        for name, losses in ((REGRESSION, plain), ("fedsgd", other))
    }
    rows = {name: {"loss": "inf"} for name in STUDY.algorithms}
    for name, choice in choices.items():
        gain, error, scored = gain_of(choice, choices[REGRESSION])
        rows[name] = {"loss": choice.loss, "gain": gain, "error": error, "scored": scored}
    gain, error = gain_of(choices["fedsgd"], choices[REGRESSION])[:2]
    if abs(gain - CLEARLY * error) > 1e-9 and abs(gain - LEAST_GAIN) > 1e-9:
        assert taken(rows, Rule(CLEARLY, LEAST_GAIN)) == chosen_method(
            choices, ("fedsgd", REGRESSION), REGRESSION
        )
