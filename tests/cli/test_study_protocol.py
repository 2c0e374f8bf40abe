"""`fedilc study --protocol` and `--follow`: an analysis that is declared before the data are analysed."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import polars as pl
import pytest
from command import Refusal, fedilc
from hospitals import hospitals

from fedilc import __version__
from fedilc.report.html.study import study_part
from fedilc.studies.study.declaration import Protocol
from fedilc.studies.study.settings import StudySettings

ONE = ("--hidden", 32, "--network-decays", 0, "--averages", "none", "--scalings", "moments")
SMALL = ("-a", "fedavg", "-a", "geometric", "--seeds", 1, "--rounds", 2, "--no-references", *ONE)
GRID = ("--learning-rates", 0.1, "--penalty-weights", 1, "--hold-out", "H0")
COLUMNS = ("--silo-column", "hospital", "--label", "died", "--missing", "lactate=-9")


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    hospitals(4).write_csv("patients.csv")
    said = fedilc("study", "patients.csv", *COLUMNS, *SMALL, *GRID, "--protocol", "plan.json")
    assert "nothing was trained" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["patients.csv", "plan.json"]
    return Path("plan.json")


def test_the_plan_has_every_setting_the_grids_the_data_and_its_digest(declared: Path) -> None:
    plan = json.loads(declared.read_text())
    assert plan["settings"].keys() == {field.name for field in fields(StudySettings)}
    assert (plan["fedilc"], plan["held_out"], plan["seeds"]) == (__version__, ["H0"], [0])
    assert [grid["local_learning_rate"] for grid in plan["methods"]["fedavg"]] == [0.01, 0.03, 0.1]
    assert plan["tables"]["missing"] == ["lactate=-9"]
    assert list(plan["data"]) == ["H0", "H1", "H2", "H3"]
    assert all(site["examples"] == 40 for site in plan["data"].values())
    assert plan["digest"] == Protocol.read(declared).digest
    before = declared.read_bytes()
    fedilc("study", "patients.csv", *COLUMNS, *SMALL, *GRID, "--protocol", declared)
    assert declared.read_bytes() == before


def test_the_plan_alone_is_enough_to_do_it_and_every_result_has_its_digest(declared: Path) -> None:
    digest = json.loads(declared.read_text())["digest"]
    sentence = f"Declared before the data were analysed: sha256 {digest}."
    said = fedilc("study", "--follow", declared, "--jobs", 1, "--out", "out")
    assert sentence in " ".join(said.split())
    facts = json.loads(Path("out/study.json").read_text())
    assert facts["protocol"] == digest
    assert facts["settings"] == json.loads(declared.read_text())["settings"]
    assert Path("out/verdict.txt").read_text().splitlines()[-1] == sentence
    assert study_part(Path("out")).verdict[-1] == sentence
    assert Path("out/plan.json").read_bytes() == declared.read_bytes()
    assert sentence in " ".join(fedilc("report", "out").split())
    fedilc("study", "--follow", declared, "--jobs", 1, "--out", "out", "--rounds", 2)  # as it is declared


def test_another_analysis_changed_data_and_an_edited_plan_are_refused(
    declared: Path, refusal: Refusal
) -> None:
    follow = ("study", "--follow", declared, "--out", "out")
    said = refusal(*follow, "--rounds", 3)
    assert said.startswith("plan.json declares settings.rounds = 2, and this analysis has 3; follow the plan")
    said = refusal(*follow, "--drop", "age")
    assert said.startswith('plan.json declares tables.drop = [], and this analysis has ["age"]')
    rows = pl.read_csv("patients.csv")
    fewer, other = rows[:-1], rows.with_columns(pl.col("died").reverse())
    elsewhere = rows.filter(pl.col("hospital") != "H2")
    flipped = pl.when(pl.col("patient") == "p1-7").then(pl.lit("x")).otherwise(pl.col("sex"))
    for frame, what in (
        (fewer, "the examples of silo 'H3' changed (39, declared: 40)"),
        (other, "the labels of silo 'H0' changed"),
        (rows.with_columns(flipped.alias("sex")), "the features of silo 'H1' changed"),
    ):
        frame.write_csv("patients.csv")
        assert refusal(*follow) == f"{what}; plan.json declares other data"
    elsewhere.write_csv("patients.csv")
    assert "plan.json declares choose_by" in refusal(*follow)
    rows.write_csv("moved.csv")
    assert refusal("study", "moved.csv", "--follow", declared, "--protocol", "b.json").endswith("one of them")
    plan = json.loads(declared.read_text())
    plan["settings"]["seeds"] = 9
    declared.write_text(json.dumps(plan))
    assert "plan.json was edited after it was written" in refusal(*follow)
    declared.write_text("{}")
    assert refusal(*follow) == (
        "plan.json is no plan of a study: it is not what --protocol writes; write one with --protocol"
    )
    assert "No such file" in refusal("study", "--follow", "nowhere.json")
    assert not Path("out").exists()


def test_a_plan_of_another_version_another_plan_and_runs_before_the_plan_are_refused(
    declared: Path, refusal: Refusal
) -> None:
    said = refusal("study", "patients.csv", *COLUMNS, "--protocol", declared)
    assert said == "plan.json declares another analysis; delete it, or name another file"
    fedilc("study", "patients.csv", *COLUMNS, *SMALL, *GRID, "--jobs", 1, "--out", "out")
    said = refusal("study", "--follow", declared, "--out", "out")
    assert said.startswith("out has runs that were done without this plan")
    older = Protocol({**Protocol.read(declared).content, "fedilc": "0.1.0"})
    older.write(Path("older.json"))
    said = refusal("study", "--follow", "older.json")
    assert said.startswith(f"older.json was declared with fedilc 0.1.0, and this is {__version__}")


NETWORK = "from torch import nn\n\n\ndef small(shape, outputs):\n    return nn.Linear(shape[0], outputs)\n"


def test_changed_code_of_an_own_network_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    hospitals(4).write_csv("patients.csv")
    own = tmp_path / "declared_network.py"
    own.write_text(NETWORK)
    given = (*COLUMNS, *SMALL, *GRID, "--model", "declared_network:small")
    fedilc("study", "patients.csv", *given, "--protocol", "plan.json")
    fedilc("study", "--follow", "plan.json", "--jobs", 1, "--out", "out")
    runs = set(Path("out/runs").iterdir())
    own.write_text(NETWORK.replace("(shape[0]", "(shape[-1]"))
    assert refusal("study", "--follow", "plan.json", "--out", "out") == (
        "the code of the network 'declared_network:small' changed since plan.json was written; restore it, "
        "or write a new plan with --protocol"
    )
    fedilc("study", "patients.csv", *given, "--jobs", 1, "--out", "out")
    assert len(set(Path("out/runs").iterdir()) - runs) == len(runs)  # no run of the other code is used
