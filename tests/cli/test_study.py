"""`fedilc study`: from a table to a verdict in one command, and on after Ctrl-C."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import Refusal
from hospitals import hospitals
from PIL import Image
from typer.testing import CliRunner

from fedilc.cli.app import app
from fedilc.errors import ConfigError, DataError, StoppedError
from fedilc.report.html.study import study_part
from fedilc.studies.study import tasks

SMALL = ("-a", "fedavg", "-a", "geometric", "--seeds", "1", "--rounds", "3", "--jobs", "1")
GRID = ("--learning-rates", "0.1", "--penalty-weights", "1", "--hold-out", "H0", "--hold-out", "H3")
COLUMNS = ("--silo-column", "hospital", "--label", "died", "--missing", "lactate=-9")


def study(*words: str) -> str:
    result = CliRunner().invoke(app, ["study", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    path = tmp_path / "patients.csv"
    hospitals(5).write_csv(path, separator=";")
    return path


def test_a_table_becomes_a_verdict_with_its_pitfalls_tables_and_files(patients: Path) -> None:
    out = patients.parent / "study"
    said = study(str(patients), *COLUMNS, *SMALL, *GRID, "--out", str(out))
    assert "column 'patient' is left out" in said
    assert "AUROC at each held-out site" in said
    facts = json.loads((out / "study.json").read_text())
    assert facts["held_out"] == ["H0", "H3"]
    assert facts["methods"] == [
        *("chosen", "fedavg", "geometric", "logistic", "null", "site alone", "alone logistic"),
        *("pooled", "pooled logistic", "pooled trees"),
    ]
    assert [facts["kinds"][name] for name in ("logistic", "null", "alone logistic", "pooled trees")] == [
        *("federated", "null", "alone", "pooled")
    ]
    assert set(facts["chosen"]) == {"H0", "H3"}
    assert set(facts["sites"]["H3"]["fedavg"]) >= {"auroc", "auprc", "log_loss", "brier", "calibration_slope"}
    assert facts["sites"]["H3"]["fedavg"]["auroc"]["low"] <= facts["sites"]["H3"]["fedavg"]["auroc"]["high"]
    exploratory = "Exploratory: no plan was declared before the data were analysed."
    assert (out / "verdict.txt").read_text().splitlines() == [*facts["verdict"], exploratory]
    assert facts["protocol"] is None
    assert study_part(out).verdict[-1] == exploratory
    assert len(facts["verdict"]) == 5
    assert facts["comparisons"]["auroc"]["geometric"]["verdict"] == "not tested"
    frame = pl.read_parquet(out / "predictions.parquet")
    assert frame.columns == ["site", "method", "seed", "row", "label", "output"]
    assert len(frame) == 2 * len(facts["methods"]) * 40
    rows = pl.read_csv(out / "tables" / "by-site.csv")
    assert {"auroc", "auroc_low", "auroc_high"} <= set(rows.columns)
    study(str(patients), *COLUMNS, *SMALL, *GRID, "--out", str(out), "--min-events", "12", "--min-cell", "21")
    facts = json.loads((out / "study.json").read_text())
    assert facts["floors"]["H3"] == {"min_events": 12, "min_cell": 21}
    assert facts["silos"]["H3"]["classes"] == {"0": None, "1": None}
    assert facts["sites"]["H3"]["fedavg"]["log_loss"]["reason"] == "fewer than 21 examples of a class"


def test_ctrl_c_keeps_what_is_done_and_the_same_command_continues(
    patients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        str(patients),
        *COLUMNS,
        *SMALL,
        *GRID,
        "--no-references",
        "--out",
        str(patients.parent / "study"),
    ]
    perform_all, stacks = tasks.perform_all, []

    def interrupted(stack: Sequence[tasks.Task], *given: Any) -> list[tasks.Result]:
        stacks.append(len(stack))
        if len(stacks) == 3:
            raise KeyboardInterrupt
        return perform_all(stack, *given)

    monkeypatch.setattr(tasks, "perform_all", interrupted)
    kept = patients.parent / "study" / "runs"
    with pytest.raises(StoppedError) as stopped:
        study(*words)
    done = sum(stacks[:2])
    assert len(list(kept.glob("*.safetensors"))) == done
    assert f"stopped with {done} of " in str(stopped.value)
    assert "runs done; run the same command to continue" in str(stopped.value)
    study(*words)
    study(*words)  # nothing is left to do
    assert len(list(kept.glob("*.safetensors"))) == done + sum(stacks[3:])


def test_mistakes_are_one_sentence(patients: Path) -> None:
    with pytest.raises(ConfigError, match="`label` is missing"):
        study(str(patients), "--silo-column", "hospital")
    with pytest.raises(ConfigError, match="name the column of silos with `silo_column`"):
        study(str(patients), "--label", "died")
    with pytest.raises(DataError, match="does not exist"):
        study("nothing.csv", "--label", "died")
    with pytest.raises(ConfigError, match="neither a file nor a data set"):
        study("hart-disease")
    with pytest.raises(DataError, match=r"other\.csv does not exist"):
        study(str(patients), "other.csv", "--label", "died")
    with pytest.raises(ConfigError, match="--categories 'sex' is not a column and its categories"):
        study(str(patients), *COLUMNS, "--categories", "sex")
    with pytest.raises(DataError, match="`categories` names the column 'gender', which no file has"):
        study(str(patients), *COLUMNS, "--categories", "gender=m,f")
    with pytest.raises(ConfigError, match="--learning-rates 'nan' has a number that is not above 0"):
        study(str(patients), *COLUMNS, "--learning-rates", "nan")
    with pytest.raises(ConfigError, match="--learning-rates 'x' is not a list of numbers"):
        study(str(patients), *COLUMNS, "--learning-rates", "x")
    with pytest.raises(ConfigError, match="--hidden '4,x' is not a list of widths like 64,32"):
        study(str(patients), *COLUMNS, "--hidden", "4,x")
    with pytest.raises(ConfigError, match="model 'linnear' is unknown; did you mean 'linear'"):
        study(str(patients), *COLUMNS, "--model", "linnear")


def test_folders_of_images_by_site_and_class_are_studied(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for site in ("a", "b", "c"):
        for name, level in (("dark", 60), ("light", 180)):
            folder = tmp_path / "pictures" / site / name
            folder.mkdir(parents=True)
            for number in range(10):
                pixels = random.integers(level - 50, level + 50, (16, 16, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    out = tmp_path / "study"
    words = ("-a", "fedavg", "--seeds", "1", "--rounds", "2", "--jobs", "1", "--hold-out", "c")
    study(str(tmp_path / "pictures"), "--image-size", "16", *words, "--no-references", "--out", str(out))
    facts = json.loads((out / "study.json").read_text())
    assert facts["loss"] == "binary"
    assert facts["choose_by"] == "validation"
    assert facts["sites"]["c"]["fedavg"]["auroc"]["value"] is not None


def test_without_arguments_four_hospitals_are_studied_with_no_data_folder_and_the_report_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDILC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    few = ("-a", "fedavg", "--seeds", "1", "--rounds", "1", "--jobs", "1", "--no-references")
    said = study(*few, "--learning-rates", "0.1", "--hold-out", "va")
    assert "for a page of it: fedilc report results/heart-disease-study -o report.html" in said
    assert json.loads(Path("results/heart-disease-study/study.json").read_text())["held_out"] == ["va"]
    report = CliRunner().invoke(app, ["report", "results/heart-disease-study"], catch_exceptions=False)
    assert "AUROC at each held-out site" in report.stdout
    page = ["report", "results/heart-disease-study", "-o", "report.html"]
    CliRunner().invoke(app, page, catch_exceptions=False)
    assert "heart-disease" in Path("report.html").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"results", "report.html"}


def test_options_of_a_table_without_the_table_are_refused(refusal: Refusal) -> None:
    said = refusal("study", "--label", "died")
    assert said == "DATA is missing; name the table to study before the options that describe it"


def test_a_file_as_the_folder_for_results_and_a_folder_of_tables_are_refused_before_any_run(
    patients: Path, refusal: Refusal
) -> None:
    before = patients.read_bytes()
    said = " ".join(refusal("study", patients, *COLUMNS, "--out", patients).split())
    assert said == f"--out {patients} is a file; name a folder for the results"
    assert patients.read_bytes() == before
    found = " ".join(refusal("study", patients.parent, *COLUMNS).split())
    assert "is a folder of tables (patients.csv), not of pictures; name the tables themselves" in found


def test_a_copied_site_is_refused_unless_it_is_excluded(tmp_path: Path, refusal: Refusal) -> None:
    for number, name in enumerate(["n", "s", "e"]):
        hospitals(1, rows=60, seed=number).drop("hospital").write_csv(tmp_path / f"{name}.csv")
    (tmp_path / "n_copy.csv").write_bytes((tmp_path / "n.csv").read_bytes())
    files = [str(tmp_path / f"{name}.csv") for name in ("n", "n_copy", "s", "e")]
    words = (*files, "--label", "died", *SMALL, "--learning-rates", "0.1", "--penalty-weights", "1")
    out = ("--no-references", "--out", str(tmp_path / "out"))
    said = refusal("study", *words, *out)
    assert said.startswith("silo 'n_copy' is a copy of 'n'")
    assert said.endswith("use --exclude-site n_copy")
    assert not (tmp_path / "out").exists()
    study(*words, "--exclude-site", "n_copy", *out)
    assert json.loads((tmp_path / "out" / "study.json").read_text())["held_out"] == ["n", "s", "e"]


def test_an_implausible_score_is_an_alarm_before_the_verdict(tmp_path: Path) -> None:
    frame = hospitals(4, rows=80).with_columns((pl.col("died") == "yes").cast(pl.Int64).alias("coffin"))
    frame.write_csv(tmp_path / "patients.csv")
    words = (str(tmp_path / "patients.csv"), *COLUMNS, "-a", "fedsgd", "--seeds", "1", "--rounds", "30")
    said = study(
        *words, "--learning-rates", "0.1", "--jobs", "1", "--no-references", "--out", str(tmp_path / "out")
    )
    flat = " ".join(said.split())
    assert "Alarm The AUROC of fedsgd is over 0.97 at 4 of 4 held-out sites" in flat
    assert "highest AUROC: 'coffin' (1.000)" in flat
    assert flat.index("Alarm") < flat.index("Verdict")
    assert (tmp_path / "out" / "verdict.txt").read_text().startswith("Alarm: The AUROC of fedsgd")
    assert "to apply all these proposals" in said
    assert study_part(tmp_path / "out").verdict[0].startswith("Alarm: ")
