"""Tables elsewhere: silos send sums and names, make the same inputs, and the run has the bits of local."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx
import numpy as np
import polars as pl
import pytest
from command import fedilc
from fleets import assert_same_run, fleet

import fedilc as package
from fedilc.config.user_sources import RemoteTables
from fedilc.errors import DataError
from fedilc.runtimes.remote.survey import Survey, read_survey, summarise_table
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.listener import listening
from fedilc.runtimes.rest.survey import Summaries, make_survey_app
from fedilc.runtimes.rest.tokens import Tokens, add_token
from rest import bearer

SILOS = ["a", "b"]


SETTINGS = 'label = "died"\npositive = "yes"\ncategorical = ["stage"]\nmissing = ["lab=-9"]\n'


MODEL = '[model]\nname = "mlp"\nhidden = [6]\n'


RUN = 'rounds = 4\nlearning_rate = 0.02\nalgorithm = "fishr-inter-geo"\npenalty_weight = 0.5\n'


SECRET = 31337.25


def patients(rows: int, seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    age = random.normal(60, 10, rows).round(1)
    return pl.DataFrame(
        {
            "age": np.where(random.random(rows) < 0.2, "?", age.astype(str)),
            "stage": random.integers(1, 4 + seed % 2, rows),
            "lab": np.where(random.random(rows) < 0.2, -9, random.normal(5, 1, rows).round(3)),
            "sex": random.choice(["m", "f"], rows),
            "died": np.where(
                age + random.normal(0, 8, rows) > 60, *(("yes", "no"), ("YES ", "No"))[seed % 2]
            ),
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tables of two silos and of a test site, and the experiment of both kinds."""
    for seed, name in enumerate([*SILOS, "c"]):
        patients(40, seed).write_csv(tmp_path / f"{name}.csv")
    (tmp_path / "local.toml").write_text(
        f'{RUN}[data]\nsource = "tables"\nfiles = "*.csv"\ntest = "c"\n{SETTINGS}{MODEL}'
    )
    (tmp_path / "remote.toml").write_text(
        f'{RUN}[data]\nsource = "remote-tables"\nsilos = ["a", "b"]\ntest = "c.csv"\n{SETTINGS}{MODEL}'
    )
    return tmp_path


@pytest.mark.filterwarnings("ignore::fedilc.errors.FedILCWarning")  # which value of the label counts as 1
def test_tables_over_http_give_the_bits_of_local_and_no_row_travels(folder: Path) -> None:
    fedilc("run", folder / "local.toml", "--out", folder / "local")
    with fleet(folder) as processes:
        coordinator, url = processes.serve(folder / "remote.toml", "--out", folder / "rest")
        silos = [
            processes.start("join", url, "--silo", name, "--data", folder / f"{name}.csv") for name in SILOS
        ]
        assert coordinator.ended() == 0, coordinator.said
        assert [silo.ended() for silo in silos] == [0, 0]
        assert all("sent counts, sums and names of 4 columns" in silo.said for silo in silos)
    assert_same_run(folder / "local", folder / "rest")
    assert (folder / "rest/preprocessing.json").read_bytes() == (
        folder / "local/preprocessing.json"
    ).read_bytes()
    one, other = (package.load(folder / name) for name in ("local", "rest"))
    assert (one.logits(folder / "c.csv") == other.logits(folder / "c.csv")).all()
    shown = fedilc("inspect", folder / "rest", "--out", folder / "inspected")
    assert "largest SMD" in " ".join(shown.split())


def survey() -> Survey:
    data = RemoteTables(silos=SILOS, label="died", categorical=["stage"])
    return Survey.of("study", data)


def test_a_summary_holds_no_cell_of_a_number_column(tmp_path: Path) -> None:
    frame = patients(40, 0).with_columns(pl.col("lab").cast(pl.Float64))
    frame[3, "lab"] = SECRET
    frame.write_csv(tmp_path / "a.csv")
    text = summarise_table("a", tmp_path / "a.csv", survey()).model_dump_json()
    assert str(SECRET) not in text
    sent = json.loads(text)
    assert {key for column in sent["columns"] for key in column} <= {
        *("name", "place", "kind", "count", "numbers", "strays", "total", "squares", "levels"),
        *("identifier", "auroc", "zero", "code"),
    }
    levels = {column["name"]: column["levels"] for column in sent["columns"]}
    assert levels["lab"] is None
    assert levels["age"] is None
    assert levels["stage"] == ["1", "2", "3"]


def test_summaries_are_taken_from_the_silo_itself(folder: Path) -> None:
    tokens = {name: bearer(add_token(folder / "tokens.json", name)) for name in SILOS}
    summaries = Summaries(survey())
    body = summarise_table("a", folder / "a.csv", survey()).model_dump_json().encode()
    app = make_survey_app(summaries, Tokens.read(folder / "tokens.json"))
    address = Address(port=0, insecure=True)
    with listening(app, address) as port, httpx.Client(base_url=address.url(port)) as client:

        def status(silo: str, content: bytes, by: str) -> int:
            path = f"/v1/silos/{silo}/summary"
            return client.put(path, content=content, headers=tokens[by]).status_code

        assert client.get("/v1/manifest").status_code == 401
        found = client.get("/v1/manifest", headers=tokens["b"]).json()
        assert found["missing"] == SILOS
        assert read_survey(found["survey"]) == survey()
        assert status("a", body, by="b") == 401
        assert status("b", body, by="b") == 422
        assert status("a", b"{}", by="a") == 422
        assert status("a", b"x" * (9 << 20), by="a") == 413
        assert summaries.missing == SILOS
        assert status("a", body, by="a") == 200
        assert summaries.missing == ["b"]


def test_without_one_silo_the_survey_ends_after_its_patience_if_enough_have_answered(folder: Path) -> None:
    summaries = Summaries(survey())
    made = summarise_table("a", folder / "a.csv", survey())
    threading.Timer(0.1, summaries.put, ("a", made)).start()
    assert list(summaries.wait(1, 0.2)) == ["a"]
    assert survey().preprocessing(summaries.found).label.classes == ("no", "yes")


def test_sums_that_no_table_has_are_one_sentence(folder: Path) -> None:
    made = summarise_table("a", folder / "a.csv", survey())
    column = next(column for column in made.columns if column.name == "lab")
    wild = column.model_copy(update={"squares": "9" * 900})
    with pytest.raises(DataError, match="sums of column 'lab' are too large for float64; rescale"):
        survey().preprocessing({"a": made.model_copy(update={"columns": (wild,)})})
