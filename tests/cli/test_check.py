"""`fedilc check`: all problems of all files at once, notes on what is probably not meant, exit code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import Refusal, fedilc
from typer.testing import CliRunner

from fedilc.cli.app import app
from fedilc.errors import FedILCWarning

TOML = """
rounds = 1
learning_rate = 0.01
algorithm = "fedsgd"
[data]
source = "files"
silos = "lay/*.csv"
{more}
[model]
hidden = [4]
"""


def hospital(seed: int, number: int = 40) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "age": random.integers(20, 90, number),
            "dose": random.normal(size=number),
            "label": np.arange(number) % 2,
        }
    )


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Four hospitals in one folder, and an experiment beside it."""
    (tmp_path / "lay").mkdir()
    for seed, name in enumerate(("cleveland", "hungarian", "switzerland", "va")):
        hospital(seed).write_csv(tmp_path / "lay" / f"{name}.csv")
    (tmp_path / "study.toml").write_text(TOML.format(more=""))
    return tmp_path


def write(study: Path, more: str) -> Path:
    (study / "study.toml").write_text(TOML.format(more=more))
    return study / "study.toml"


def refused(*arguments: object) -> str:
    """What `fedilc check` prints where the experiment cannot be trained."""
    result = CliRunner().invoke(app, ["check", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 2, result.output
    return result.stdout


def test_check_shows_each_silo_with_its_file_rows_columns_and_labels(study: Path) -> None:
    shown = fedilc("check", study / "study.toml")
    (line,) = [line for line in shown.splitlines() if "va.csv" in line]
    assert line.split()[-8:] == ["28", "12", "2", "columns", "0:", "20,", "1:", "20"]
    assert "note:" not in shown
    assert "can be trained" in shown


def test_check_says_all_problems_of_all_files_at_once(study: Path) -> None:
    (study / "lay/va.csv").write_text("age,dose,label\n40,?,0\n50,red,1\n60,1.0,2\n")
    (study / "lay/hungarian.csv").write_text("age,label\n40,0\n,1\n")
    shown = refused(study / "study.toml")
    for sentence in (
        "va.csv: column 'dose' holds text, not numbers ('?' in line 2)",
        "hungarian.csv: column 'age' has an empty cell (first in line 3)",
        "va.csv: column 'label' holds the label 2; labels must be 0 or 1",
        "study.toml cannot be trained: 3 problems",
    ):
        assert sentence in " ".join(shown.split())


def test_check_tries_model_and_algorithm_on_the_data(study: Path) -> None:
    assert "min_silos=9 is more than the 4 silos" in refused(study / "study.toml", "--set", "min_silos=9")
    assert "model 'cnn' needs images" in refused(
        study / "study.toml", "--set", "model.name=cnn", "--set", "model.hidden=none"
    )


def test_check_tries_a_network_of_ones_own(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (study / "nets_of_check.py").write_text("from torch import nn\ndef net():\n    return nn.Linear(7, 1)\n")
    monkeypatch.chdir(study)
    monkeypatch.syspath_prepend(study)
    shown = refused("study.toml", "--model", "nets_of_check:net")
    assert "the model cannot take inputs of shape (2,)" in shown


def test_check_of_a_shipped_experiment_names_its_silos() -> None:
    shown = fedilc("check", "color-digits")
    assert "flip-0.75" in shown
    assert "note:" not in shown


def test_check_of_thousands_of_silos_shows_some_and_counts_the_others() -> None:
    assert "9,950 more silos are not shown" in fedilc("check", "many-silos")


def test_check_of_silos_that_join_from_elsewhere_tries_the_model(tmp_path: Path) -> None:
    data = 'source = "remote"\nsilos = ["north", "south"]\ninputs = [3]\n'
    (tmp_path / "far.toml").write_text(f"rounds = 1\nlearning_rate = 0.1\n[data]\n{data}")
    assert "joins from elsewhere" in fedilc("check", tmp_path / "far.toml")


@pytest.mark.parametrize("in_memory", ["true", "false"])
def test_run_refuses_a_test_file_that_is_one_of_the_silos(
    study: Path, refusal: Refusal, in_memory: str
) -> None:
    place = write(study, f'test = "lay/va.csv"\nin_memory = {in_memory}')
    said = refusal("run", place, "--out", study / "run")
    assert "data.test 'lay/va.csv' is also the file of silo 'va'" in said
    assert not (study / "run").exists()


def test_a_link_to_a_silos_file_is_that_file(study: Path, refusal: Refusal) -> None:
    (study / "far.csv").symlink_to(study / "lay" / "va.csv")
    assert "is also the file of silo 'va'" in refusal("run", write(study, 'test = "far.csv"'))


@pytest.mark.parametrize("in_memory", ["true", "false"])
@pytest.mark.parametrize("copy", ["csv", "parquet", "shuffled.csv", "turned.csv"])
def test_a_copy_of_a_silo_is_refused_as_test_set_in_whatever_form(
    study: Path, refusal: Refusal, copy: str, in_memory: str
) -> None:
    table = pl.read_csv(study / "lay/va.csv")
    if copy == "parquet":
        table.write_parquet(study / "far.parquet")
    elif copy == "turned.csv":
        table.select("label", "dose", "age").write_csv(study / f"far.{copy}")
    else:
        table.sample(fraction=1.0, shuffle=copy != "csv", seed=1).write_csv(study / f"far.{copy}")
    place = write(study, f'test = "far.{copy}"\nin_memory = {in_memory}')
    assert "the test set has the same rows as silo 'va'" in refusal("run", place)


def test_run_says_all_problems_in_one_sentence(study: Path, refusal: Refusal) -> None:
    (study / "lay/va.csv").write_text("age,dose,label\n40,?,0\n50,1.0,1\n")
    (study / "lay/hungarian.csv").write_text("age,dose,label\n40,1.0,0\n,1.0,1\n")
    said = refusal("run", study / "study.toml")
    assert said.startswith("there are 2 problems: (1) ")
    assert "hungarian.csv: column 'age' has an empty cell (first in line 3)" in said
    assert "va.csv: column 'dose' has a missing value ('?' in line 2)" in said


@pytest.mark.parametrize("in_memory", ["true", "false"])
def test_run_notes_rows_that_the_test_set_shares_with_silos(study: Path, in_memory: str) -> None:
    far = pl.concat([hospital(9), pl.read_csv(study / "lay/va.csv").head(3)])
    far.write_csv(study / "far.csv")
    place = write(study, f'test = "far.csv"\nin_memory = {in_memory}')
    with pytest.warns(FedILCWarning, match=r"3 of the 43 rows of the test set are also in 'va' \(3\)"):
        fedilc("run", place, "--out", study / "run")


def test_a_renamed_silo_keeps_its_validation_split(study: Path) -> None:
    from fedilc.config import read_experiment

    def held_out(name: str) -> list[list[float]]:
        settings, folder = read_experiment(str(study / "study.toml"))
        silo = settings.data.store(0, folder).open(name)
        assert silo.x_val is not None
        return silo.x_val.tolist()

    before = held_out("va")
    (study / "lay/va.csv").rename(study / "lay/a-new-name.csv")
    assert held_out("a-new-name") == before
