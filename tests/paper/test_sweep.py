"""`fedilc sweep lambda`: a table with one line per value, and values that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Refusal, fedilc


def test_each_value_is_trained_once_in_ascending_order(tmp_path: Path) -> None:
    words = ("--values", "10,0,10", "--seeds", 1, "--rounds", 2, "--set", "model.hidden=[8]", "--jobs", 2)
    printed = fedilc("sweep", "lambda", "color-digits", *words, "--out", tmp_path)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["lambda-0", "lambda-10"]
    lines = [line.split() for line in printed.splitlines()]
    assert [line[0] for line in lines if len(line) > 3 and line[0] in ("0", "10")] == ["0", "10"]
    assert f"results: {tmp_path} (tables.md, tables.tex, tables/*.csv, lambda.png)" in printed
    assert (tmp_path / "lambda.png").exists()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("0,a", "--values '0,a' is not a list of numbers like 0.01,0.1"),
        ("", "--values '' is not a list of numbers like 0.01,0.1"),
        ("1,-0.5", "--values '1,-0.5' has a number that is not 0 or above 0"),
        ("0,nan", "--values '0,nan' has a number that is not 0 or above 0"),
        ("inf", "--values 'inf' has a number that is not 0 or above 0"),
    ],
)
def test_values_that_are_no_lambdas_are_one_sentence(refusal: Refusal, values: str, sentence: str) -> None:
    assert refusal("sweep", "lambda", "--values", values) == sentence
