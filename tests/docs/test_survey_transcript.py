"""The page on security prints what a silo sends before a run over tables, which names no few patients."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedilc.cli.join import SiloProgress, SummaryConsent
from fedilc.data.sources import RemoteTables
from fedilc.data.tables.column_values import names_of
from fedilc.data.tables.silo_summary import SiloSummary
from fedilc.errors import ConfigError
from fedilc.runtimes.remote.survey import Survey, SurveyLimits, summarise_table

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "security.md"
ROWS, FEWEST = 900, 10


def hospital() -> pl.DataFrame:
    """900 patients with record numbers and names; one ward and one dose that few patients have."""
    random = np.random.default_rng(27)
    wards = random.choice(["medical", "surgical"], ROWS).tolist()
    wards[:4] = ["burns"] * 4
    return pl.DataFrame(
        {
            "mrn": random.permutation(np.arange(7_000_000, 7_000_000 + ROWS)),
            "name": [f"Doe{place} Jo" for place in range(ROWS)],
            "age": random.normal(61, 14, ROWS).round(),
            "ward": wards,
            "stage": random.integers(1, 4, ROWS),
            "dose": [412.5, 87.25, *[None] * (ROWS - 2)],
            "died": random.choice(["no", "yes"], ROWS, p=[0.7, 0.3]),
        }
    )


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    return hospital()


def asked() -> Survey:
    """A coordinator that declares as much as it can."""
    names = ["mrn", "name", "ward", "stage", "dose"]
    data = RemoteTables(silos=["north"], label="died", categorical=names, keep=names)
    return Survey.of("study", data)


@pytest.fixture
def summary(frame: pl.DataFrame, tmp_path: Path) -> SiloSummary:
    frame.write_csv(tmp_path / "north.csv")
    return summarise_table("north", tmp_path / "north.csv", asked())


def test_the_page_prints_what_the_owner_sees(
    summary: SiloSummary, capsys: pytest.CaptureFixture[str]
) -> None:
    consent = SummaryConsent(SiloProgress("north", None), SurveyLimits(), yes=True)
    consent(summary, asked(), "4c7d" * 16)
    *shown, digest = capsys.readouterr().out.splitlines()
    assert digest == "north: digest of the summary: 4c7d4c7d4c7d4c7d"
    assert "".join(f"    {line}\n" for line in shown) in PAGE.read_text()


def test_an_owner_in_a_terminal_is_asked_and_may_refuse(
    summary: SiloSummary, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    consent = SummaryConsent(SiloProgress("north", None), SurveyLimits(), yes=False)
    asked_for: list[str] = []
    for answer in (True, False):
        monkeypatch.setattr("typer.confirm", lambda text, answer=answer: asked_for.append(text) or answer)
        if answer:
            consent(summary, asked(), "0" * 64)
        else:
            with pytest.raises(ConfigError, match="silo 'north' does not take part; nothing was sent"):
                consent(summary, asked(), "0" * 64)
    assert asked_for == ["send this summary to the coordinator?"] * 2
    assert capsys.readouterr().out.count("this is all that it contains") == 2


def test_nothing_that_is_sent_identifies_one_of_fewer_than_ten_patients(
    frame: pl.DataFrame, summary: SiloSummary
) -> None:
    sent = summary.model_dump_json()
    texts = set(re.findall(r'"([^"]*)"', sent))
    for name in frame.columns:
        rows = Counter(names_of(frame[name]).drop_nulls().to_list())
        rare = {value for value, count in rows.items() if count < FEWEST and not value.isdecimal()}
        assert not rare & texts, name
    for column in json.loads(sent)["columns"]:
        rows = Counter(names_of(frame[column["name"]]).drop_nulls().to_list())
        assert all(rows[level] >= FEWEST for level in column["levels"] or ())
        summed = column["numbers"]
        assert summed == 0 or summed >= FEWEST
        if max(rows.values()) == 1:
            assert (column["levels"] or [], column["total"], column["squares"]) == ([], "0", "0")
    assert all(count >= FEWEST for count in summary.labels.values())
    identifiers = [*frame["mrn"].cast(pl.String), *frame["name"], "412.5", "87.25", "burns"]
    assert not any(value in sent for value in identifiers)


def test_the_page_names_no_value_of_fewer_than_ten_patients(frame: pl.DataFrame) -> None:
    transcript = "".join(line for line in PAGE.read_text().splitlines() if line.startswith("    north: "))
    assert transcript
    rare = [*frame["mrn"].cast(pl.String), *frame["name"], "412.5", "87.25", "burns"]
    assert not any(value in transcript for value in rare)
