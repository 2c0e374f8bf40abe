"""`fedilc study` with what reviewers ask: thresholds, subgroups, and a run without indicators."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hospitals import hospitals
from typer.testing import CliRunner

from fedilc.cli.app import app
from fedilc.errors import ConfigError


def study(folder: Path, *options: str) -> tuple[str, BaseException | None]:
    table = folder / "patients.csv"
    hospitals(4, rows=60).write_csv(table)
    quick = ["--seeds", "1", "--rounds", "2", "-a", "fedavg", "--no-references", "--jobs", "1"]
    given = ["study", str(table), "--silo-column", "hospital", "--label", "died", "--missing", "lactate=-9"]
    done = CliRunner().invoke(app, [*given, *quick, "--out", str(folder / "out"), *options])
    return done.output, done.exception


def test_all_of_it_is_in_the_files(tmp_path: Path) -> None:
    output, error = study(
        tmp_path, "--drop", "sex", "--subgroup", "sex", "--thresholds", "0.15,0.4", "--sensitivity"
    )
    assert error is None
    assert "once more without indicators of missing values" in output
    facts = json.loads((tmp_path / "out" / "study.json").read_text())
    assert facts["net_benefit"]["thresholds"] == [0.15, 0.4]
    assert {one["level"] for one in facts["subgroups"]} == {"sex = f", "sex = m"}
    assert [one["name"] for one in facts["variables"]] == ["age", "lactate"]
    assert list(facts["sensitivity"]["methods"]) == ["fedavg"]
    named = {path.stem for path in (tmp_path / "out" / "tables").iterdir()}
    assert {"subgroups", "subgroups-by-site", "sensitivity", "net-benefit", "flow", "variables"} <= named
    assert "| 23a |" in (tmp_path / "out" / "checklist.md").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--subgroup", "sx"), "names the column 'sx', which no file has; did you mean 'sex'"),
        (("--thresholds", "0.2,1.5"), r"thresholds.1=1.5 is not valid: input should be less than 1"),
    ],
)
def test_a_mistake_is_one_sentence_before_any_run(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    _, error = study(tmp_path, *options)
    assert isinstance(error, ConfigError)
    with pytest.raises(ConfigError, match=said):
        raise error
    assert not (tmp_path / "out" / "runs").exists()
