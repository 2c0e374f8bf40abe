"""An experiment is checked before it is run: all problems at once, a row per silo, and nothing trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from fedilc.config import read_experiment
from fedilc.errors import DataProblemsError
from fedilc.studies.checking import NAMED, check_experiment, prepare

GOOD = "".join(f"{n % 7}.5,{n % 5}.25,{n % 2}\n" for n in range(20))
FILES = """
name = "mine"
rounds = 1
learning_rate = 0.1
[data]
source = "files"
silos = "*.csv"
label = "y"
[model]
hidden = [4]
"""


def experiment(folder: Path, second: str = GOOD) -> str:
    for name, text in (("a", GOOD), ("b", second)):
        (folder / f"{name}.csv").write_text(f"u,v,y\n{text}")
    (folder / "mine.toml").write_text(FILES)
    return str(folder / "mine.toml")


def test_files_have_a_row_each_with_their_examples_and_labels(tmp_path: Path) -> None:
    found = check_experiment(*read_experiment(experiment(tmp_path)))
    assert found.report.problems == []
    assert [(row.name, row.file, row.inputs) for row in found.rows] == [
        ("a", "a.csv", (2,)),
        ("b", "b.csv", (2,)),
    ]
    assert [(row.examples or 0) + (row.validation or 0) for row in found.rows] == [20, 20]
    assert found.rows[0].labels == {0: 10, 1: 10}
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "b.csv", "mine.toml"}


def test_problems_of_the_data_are_listed_and_preparing_raises_them(tmp_path: Path) -> None:
    settings, folder = read_experiment(experiment(tmp_path, GOOD.replace("0.25", "x")))
    found = check_experiment(settings, folder)
    assert len(found.report.problems) == 1
    assert "b.csv" in found.report.problems[0]
    with pytest.raises(DataProblemsError, match=r"b\.csv"):
        prepare(settings, folder)


def test_settings_that_do_not_fit_the_data_are_a_problem() -> None:
    settings, folder = read_experiment("color-digits", ["optimizer=nonsense"])
    (problem,) = check_experiment(settings, folder).report.problems
    assert "nonsense" in problem


def test_preparing_gives_the_data_and_the_model(tmp_path: Path) -> None:
    store, model = prepare(*read_experiment(experiment(tmp_path)))
    assert list(store.silos) == ["a", "b"]
    assert isinstance(model, nn.Module)


def test_of_many_silos_some_have_a_row_and_the_rest_is_counted() -> None:
    found = check_experiment(*read_experiment("many-silos", ["data.silos=60"]))
    assert found.report.problems == []
    assert found.hidden == 10
    assert len([row for row in found.rows if row.name.startswith("silo")]) <= NAMED
    assert len(found.rows) in (NAMED, NAMED + 1)


def test_silos_that_join_from_elsewhere_have_a_row_without_counts(tmp_path: Path) -> None:
    (tmp_path / "far.toml").write_text(
        "rounds = 1\nlearning_rate = 0.1\n[data]\nsource = 'remote'\nsilos = ['x', 'y']\ninputs = [3]\n"
        "[model]\nhidden = [4]\n"
    )
    found = check_experiment(*read_experiment(str(tmp_path / "far.toml")))
    assert found.report.problems == []
    assert [(row.name, row.file, row.examples) for row in found.rows] == [
        ("x", "joins from elsewhere", None),
        ("y", "joins from elsewhere", None),
    ]
