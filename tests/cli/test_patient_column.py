"""`patient_column`: rows of one patient stay together, and evaluate, model card and report agree."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import Refusal, fedilc
from hospitals import hospitals

from fedilc.data.tables.silo_tables import read_tables
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import FedILCWarning
from fedilc.evaluation.estimates import estimate
from fedilc.evaluation.intervals import Interval, score_intervals
from fedilc.report.html.study import study_part
from fedilc.studies.study.data import StudyTables

SCORED = ("auroc", "auprc", "log_loss", "brier", "accuracy", "calibration_slope")


def visits(sites: int = 4, rows: int = 90) -> pl.DataFrame:
    """Return the hospitals with three visits per patient."""
    number = pl.int_range(pl.len()).over("hospital") // 3
    return hospitals(sites, rows).with_columns(pl.format("{}-{}", "hospital", number).alias("patient"))


def test_the_model_card_and_evaluate_have_the_same_intervals_which_are_of_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    visits().write_csv("visits.csv")
    visits().filter(pl.col("hospital") == "H3").write_csv("H3.csv")
    Path("e.toml").write_text(
        'rounds = 4\nlearning_rate = 0.05\nalgorithm = "fedsgd"\n[data]\nsource = "tables"\n'
        'files = "visits.csv"\nsilo_column = "hospital"\nlabel = "died"\ntest = "H3"\n'
        'missing = ["lactate=-9"]\npatient_column = "patient"\n[model]\nname = "mlp"\nhidden = [4]\n'
    )
    with pytest.warns(FedILCWarning, match="counts as 1"):
        fedilc("run", "e.toml", "--out", "run")
    card = Path("run/model-card.md").read_text()
    assert "90 examples of 30 patients" in card
    fedilc("evaluate", "run", "H3.csv", "--json", "by-default.json")
    fedilc("evaluate", "run", "H3.csv", "--json", "named.json", "--patient-column", "patient")
    assert Path("by-default.json").read_bytes() == Path("named.json").read_bytes()
    found = json.loads(Path("named.json").read_text())
    assert (found["rows"], found["patients"]) == (90, 30)
    for name, numbers in found["scores"].items():
        line = re.search(rf"^\| {name.replace('_', ' ')} \| (.*) \|$", card, re.MULTILINE)
        assert line is not None
        assert line[1] == str(Interval(**numbers))
    assert "patients with" in found["scores"]["auroc"]["caution"]
    visits().filter(pl.col("hospital") == "H3").drop("patient").write_csv("rows.csv")
    fedilc("evaluate", "run", "rows.csv", "--json", "rows.json")
    alone = json.loads(Path("rows.json").read_text())
    assert alone["scores"]["auroc"]["value"] == found["scores"]["auroc"]["value"]
    assert alone["scores"]["auroc"]["low"] != found["scores"]["auroc"]["low"]


def test_the_report_of_a_study_has_the_intervals_that_evaluate_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    visits().write_csv("visits.csv")
    words = ("--silo-column", "hospital", "--label", "died", "--missing", "lactate=-9")
    small = ("-a", "fedavg", "--seeds", 1, "--rounds", 2, "--jobs", 1, "--hold-out", "H0")
    small += ("--subgroup", "sex")
    fedilc("study", "visits.csv", *words, *small, "--patient-column", "patient", "--out", "out")
    study = json.loads(Path("out/study.json").read_text())
    assert study["silos"]["H0"]["patients"] == 30
    assert not any("column 'patient'" in note for note in study["notes"]), study["notes"]
    made = pl.read_parquet("out/predictions.parquet").filter(pl.col("method") == "fedavg").sort("row")
    patients = np.arange(90) // 3
    found = score_intervals(
        "binary", made["label"].to_numpy(), made["output"].to_numpy(writable=True), patients
    )
    (table,) = pl.read_csv("out/tables/by-site.csv").filter(pl.col("method") == "fedavg").to_dicts()
    page = " ".join(markup for _, markup in study_part(Path("out")).sections)
    for name in SCORED:
        stored = study["sites"]["H0"]["fedavg"][name]
        assert (stored["value"], stored["low"], stored["high"]) == pytest.approx(
            (found[name].value, found[name].low, found[name].high), rel=1e-12
        )
        assert float(table[f"{name}_low"]) == pytest.approx(found[name].low, abs=5e-4)
    assert f"{found['auroc'].low:.3f}" in page
    one = estimate("binary", "oe_ratio", made["label"], [made["output"].to_numpy(writable=True)], patients)
    ratio = study["calibration"]["H0"]["fedavg"]["oe_ratio"]
    assert np.log(ratio["high"] / ratio["value"]) == pytest.approx(1.959964 * one.variance**0.5)
    women = visits().filter(pl.col("hospital") == "H0")["sex"].to_numpy() == "f"
    (part,) = (p for p in study["subgroups"] if (p["place"], p["level"]) == ("H0", "sex = f"))
    of_women = score_intervals(
        "binary", made["label"].to_numpy()[women], made["output"].to_numpy()[women].copy(), patients[women]
    )
    assert part["methods"]["fedavg"]["brier"]["low"] == pytest.approx(of_women["brier"].low)


def test_a_patient_at_two_sites_of_one_table_is_refused_and_numbers_of_two_files_are_noted(
    tmp_path: Path, refusal: Refusal
) -> None:
    frame = visits().with_columns(pl.col("patient").str.replace("H3-7$", "H0-7"))
    frame.write_csv(tmp_path / "visits.csv")
    words = ("--silo-column", "hospital", "--label", "died", "--patient-column", "patient")
    said = refusal("study", tmp_path / "visits.csv", *words)
    assert said.startswith(
        "1 value of 'patient' (H0-7) is at more than one silo, so that their rows would be"
    )
    for site in ("H0", "H3"):
        frame.filter(pl.col("hospital") == site).drop("hospital").write_csv(tmp_path / f"{site}.csv")
    paths = [tmp_path / "H0.csv", tmp_path / "H3.csv"]
    tables = read_tables(paths, TableSettings(label="died", patient_column="patient"))
    assert "they are taken as different patients" in tables.reading[-1]
    said = refusal("study", *paths, "--label", "died", "--patient-column", "patiant")
    assert said.startswith("--patient-column names the column 'patiant', which no file has; did you mean")


def test_changed_settings_keep_the_patients_and_other_tables_have_none(tmp_path: Path) -> None:
    visits(2).write_csv(tmp_path / "visits.csv")
    settings = TableSettings(label="died", patient_column="patient")
    tables = read_tables([tmp_path / "visits.csv"], settings, "hospital")
    again = tables.with_settings(drop=["age"])
    assert "patient" not in tables.silos["H0"].frame.columns
    for name, table in tables.silos.items():
        numbers = again.silos[name].patients
        assert len(np.unique(np.stack([numbers, table.patients]), axis=1).T) == len(np.unique(numbers)) == 30
    plain = read_tables([tmp_path / "visits.csv"], TableSettings(label="died"), "hospital")
    ours, others = (StudyTables.of("x", one) for one in (tables, plain))
    assert (set(ours.patients), others.patients) == ({"H0", "H1"}, {})
    assert "patient_column" not in plain.settings.model_dump()
    assert ours.tables.fit(["H0"]).model_dump()["patient_column"] == "patient"
    both = ours.patients_of(["H0", "H1"])
    assert len(np.unique(both)) == 60
    assert others.patients_of(["H0", "H1"]) is None
