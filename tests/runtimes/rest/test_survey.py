"""Tables elsewhere: silos send sums and names, make the same inputs, and the run has the bits of local."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
from command import fedilc
from fastapi import Request
from fleets import Fleet, Member, assert_same_run, fleet, outcome_of

import fedilc as package
from fedilc.config import read_experiment
from fedilc.data.sources import RemoteTables
from fedilc.data.tables.preprocessing import Preprocessing
from fedilc.runtimes.remote.run import RemoteRun
from fedilc.runtimes.remote.survey import Survey, read_survey, silo_from_table, summarise_table
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.auth import Auth, Tokens, add_token
from fedilc.runtimes.rest.coordinator import listening, make_bare_app
from fedilc.runtimes.rest.survey import Summaries, make_survey_app
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
        patients(120, seed).write_csv(tmp_path / f"{name}.csv")
    (tmp_path / "local.toml").write_text(
        f'{RUN}[data]\nsource = "tables"\nfiles = "*.csv"\ntest = "c"\n{SETTINGS}{MODEL}'
    )
    (tmp_path / "remote.toml").write_text(
        f'{RUN}[data]\nsource = "remote-tables"\nsilos = ["a", "b"]\ntest = "c.csv"\n{SETTINGS}{MODEL}'
    )
    return tmp_path


def joined(processes: Fleet, url: str, name: str, *more: object, data: str | None = None) -> Member:
    """A silo that joins with its table; what it remembers is in the test's folder."""
    table = processes.folder / (data or f"{name}.csv")
    state = str(processes.folder / "home")
    return processes.start("join", url, "--silo", name, "--data", table, *more, XDG_STATE_HOME=state)


@pytest.mark.filterwarnings("ignore::fedilc.errors.FedILCWarning")  # which value of the label counts as 1
@pytest.mark.parametrize("further", ["", 'round_survey = 10\nscaling = "robust"\n'])
def test_tables_over_http_give_the_bits_of_local_and_no_row_travels(folder: Path, further: str) -> None:
    for name in ("local.toml", "remote.toml"):
        (folder / name).write_text((folder / name).read_text().replace("[model]", f"{further}[model]"))
    fedilc("run", folder / "local.toml", "--out", folder / "local")
    with fleet(folder) as processes:
        coordinator, url = processes.serve(folder / "remote.toml", "--out", folder / "rest")
        silos = [joined(processes, url, name, "--yes") for name in SILOS]
        assert coordinator.ended() == 0, coordinator.said
        assert [silo.ended() for silo in silos] == [0, 0]
        for silo in silos:
            assert "this is all that it contains:" in silo.said
            assert re.search(r"sent the summary [0-9a-f]{16}: 4 columns of 120 rows", silo.said)
    assert_same_run(folder / "local", folder / "rest")
    assert (folder / "rest/preprocessing.json").read_bytes() == (
        folder / "local/preprocessing.json"
    ).read_bytes()
    one, other = (package.load(folder / name) for name in ("local", "rest"))
    assert (one.logits(folder / "c.csv") == other.logits(folder / "c.csv")).all()
    features = json.loads((folder / "rest/preprocessing.json").read_text())["features"]
    clipped = ["high" in feature for feature in features if feature["kind"] == "number"]
    assert any(clipped) == bool(further)
    shown = fedilc("inspect", folder / "rest", "--out", folder / "inspected")
    assert "largest SMD" in " ".join(shown.split())


def visits(rows: int, seed: int) -> pl.DataFrame:
    """Patients with one to five rows each, whose `visit` numbers all rows."""
    random = np.random.default_rng(seed)
    whose = np.repeat(np.arange(rows), random.integers(1, 6, rows))[:rows]
    patient = pl.Series("patient", [f"p{seed}-{number}" for number in random.permutation(rows)[whose]])
    return patients(rows, seed).with_columns(patient, visit=np.arange(rows) + 0.5)


@pytest.mark.filterwarnings("ignore::fedilc.errors.FedILCWarning")  # which value of the label counts as 1
def test_rows_of_one_patient_stay_together_at_the_silo(folder: Path) -> None:
    for seed, name in enumerate([*SILOS, "c"]):
        visits(120, seed).write_csv(folder / f"{name}.csv")
    for name in ("local.toml", "remote.toml"):
        (folder / name).write_text(
            (folder / name).read_text().replace("[model]", 'patient_column = "patient"\n[model]')
        )
    fedilc("run", folder / "local.toml", "--out", folder / "local")
    with fleet(folder) as processes:
        coordinator, url = processes.serve(folder / "remote.toml", "--out", folder / "rest")
        silos = [joined(processes, url, name, "--yes") for name in SILOS]
        assert coordinator.ended() == 0, coordinator.said
        for silo in silos:
            assert silo.ended() == 0
            assert re.search(r"sent the summary [0-9a-f]{16}: 5 columns of 120 rows", silo.said)
            assert "p0-" not in silo.said
    assert_same_run(folder / "local", folder / "rest")
    made = Preprocessing.model_validate_json((folder / "rest/preprocessing.json").read_text())
    settings, _ = read_experiment(str(folder / "remote.toml"), [])
    manifest = RemoteRun.of(settings, folder, preprocessing=made).manifest
    silo = silo_from_table("a", folder / "a.csv", manifest, 0.3)
    whose = visits(120, 0)["patient"].to_numpy()
    at = np.argsort(np.argsort(np.concatenate([silo.x[:, -1], silo.x_val[:, -1]])))  # back to the visits
    trained, held_out = set(whose[at[: len(silo.x)]]), set(whose[at[len(silo.x) :]])
    assert len(trained) + len(held_out) == len(set(whose)) > 1
    assert trained.isdisjoint(held_out)


def test_a_summary_waits_for_its_owner_and_consent_outlives_restarts(folder: Path) -> None:
    with fleet(folder) as processes:
        coordinator, url = processes.serve(folder / "remote.toml", "--out", folder / "rest")
        alone = joined(processes, url, "a")
        assert alone.ended() == 2
        assert "nobody is here to agree to the summary of silo 'a', so nothing was sent" in alone.said
        first = joined(processes, url, "a", "--yes")
        first.wait_until("waiting for the summaries of other silos")
        first.kill()
        coordinator.kill()
        again, _ = processes.serve(
            folder / "remote.toml", "--out", folder / "rest", port=int(url.rpartition(":")[2])
        )
        second = joined(processes, url, "a")
        second.wait_until("sent the summary")
        assert "this is all that it contains" not in second.said
        second.kill()
        patients(119, 0).write_csv(folder / "a.csv")
        changed = joined(processes, url, "a", "--yes")
        assert changed.ended() == 2
        assert "the table of silo 'a' has changed since its summary was sent to the run" in changed.said
        patients(120, 0).write_csv(folder / "a.csv")
        silos = [joined(processes, url, "a"), joined(processes, url, "b", "--yes")]
        assert again.ended() == 0, again.said
        assert [silo.ended() for silo in silos] == [0, 0]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("run", ["study", "other"])
def test_a_coordinator_cannot_ask_again_with_other_settings_although_the_owner_said_yes(
    folder: Path, run: str, restarts: bool
) -> None:
    """Else it would get sums with and without a patient by marks of missing values, survey by survey."""
    received: list[dict[str, Any]] = []
    first, second = survey(), survey(missing=["age=61.5", "died=maybe"]).model_copy(update={"run": run})
    app = make_bare_app(Auth(None, ["a"]), Audit(), 1)

    @app.get("/v1/manifest")
    async def manifest() -> dict[str, Any]:
        asked = second if received else first
        return {"survey": asked.model_dump(mode="json"), "missing": ["a"]}

    @app.put("/v1/silos/a/summary")
    async def summary(request: Request) -> None:
        received.append(json.loads(await request.body()))

    address = Address(port=0, insecure=True)
    frame = patients(120, 0).with_columns(age=pl.lit("61.5"))
    frame[:60].vstack(patients(120, 0)[60:]).write_csv(folder / "a.csv")
    with listening(app, address) as port, fleet(folder) as processes:
        silo = joined(processes, address.url(port), "a", "--yes")
        if restarts:
            silo.wait_until("sent the summary")
            silo.kill()
            silo = joined(processes, address.url(port), "a", "--yes")
        assert silo.ended() == 2
        assert "another summary was sent to this address before" in silo.said
        assert "--yes is not enough" in silo.said
    assert len(received) == 1


def test_an_owner_without_a_terminal_or_with_a_small_table_sends_nothing(folder: Path) -> None:
    patients(30, 0).write_csv(folder / "a.csv")
    with fleet(folder) as processes:
        _, url = processes.serve(folder / "remote.toml", "--out", folder / "rest")
        small = joined(processes, url, "a", "--yes")
        assert small.ended() == 2
        assert "30 rows with a label, fewer than the 50 that a summary needs" in small.said
        told = joined(processes, url, "a", "--yes", "--min-rows", 30)
        told.wait_until("warning: each of its sums is over 30 patients or fewer")
        told.wait_until("sent the summary")
        assert "column 'stage'" in told.said
        listed = joined(processes, url, "b", "--yes", "--columns", "age,died")
        listed.wait_until("sent the summary [0-9a-f]{16}: 1 columns of 120 rows")
        assert "column 'stage'" not in listed.said


ATTACKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "rows: ": lambda sent: sent | {"rows": 1e30},
    "labels: ": lambda sent: sent | {"labels": {f"y{place}": 20 for place in range(900)}},
    "columns: ": lambda sent: (
        sent | {"columns": [sent["columns"][0] | {"name": f"x{n}"} for n in range(45_000)]}
    ),
    "too large for its number of values": lambda sent: (
        sent | {"columns": [column | {"total": "9" * 890} for column in sent["columns"]]}
    ),
    "over 1,000,000 times those of the others": lambda sent: (
        sent
        | {
            "columns": [
                column
                | {"total": str(column["numbers"] * 10**30), "squares": str(column["numbers"] * 10**60)}
                for column in sent["columns"]
                if column["numbers"]
            ]
        }
    ),
    "10 values that most silos do not have": lambda sent: sent | {"labels": {f"y{n}": 10 for n in range(10)}},
    "its label is a number": lambda sent: sent | {"labels": {}},
    "over 10,000 times as many as the others": lambda sent: sent | {"rows": 10**9},
}


@pytest.mark.filterwarnings("ignore::fedilc.errors.FedILCWarning")
def test_a_silo_that_lies_in_its_summary_is_named_and_the_run_is_that_of_the_others(folder: Path) -> None:
    fedilc("run", folder / "local.toml", "--out", folder / "local")
    attacked = (folder / "remote.toml").read_text().replace('silos = ["a", "b"]', 'silos = ["a", "b", "z"]')
    (folder / "attacked.toml").write_text(f"min_silos = 2\n{attacked}")
    sent = json.loads(summarise_table("z", folder / "a.csv", survey(positive="yes")).model_dump_json())
    with fleet(folder) as processes:
        arguments = "--out", folder / "rest", "--round-timeout", 20
        coordinator, url = processes.serve(folder / "attacked.toml", *arguments)
        silos = [joined(processes, url, name, "--yes") for name in SILOS]
        for silo in silos:
            silo.wait_until("waiting for the summaries of other silos")
        with httpx.Client(base_url=url) as client:
            for reason, attack in ATTACKS.items():
                text = json.dumps(attack(sent))
                answer = client.put("/v1/silos/z/summary", content=text)
                if answer.status_code == 200:
                    coordinator.wait_until(f"summary of silo 'z' is refused: .*{re.escape(reason)}")
                    answer = client.put("/v1/silos/z/summary", content=text)
                assert answer.status_code in (403, 413, 422), (reason, answer.text)
                assert reason in answer.text or answer.status_code == 413
                assert "'z'" in coordinator.said
        assert coordinator.ended() == 0, coordinator.said
        assert [silo.ended() for silo in silos] == [0, 0]
    events = [json.loads(line) for line in (folder / "rest/audit.jsonl").read_text().splitlines()]
    refused = {event["silo"] for event in events if event["event"] == "summary refused"}
    assert refused == {"z"}
    assert (folder / "rest/preprocessing.json").read_bytes() == (
        folder / "local/preprocessing.json"
    ).read_bytes()
    alone, attacked_run = outcome_of(folder / "local")[1], outcome_of(folder / "rest")[1]
    assert alone.keys() == attacked_run.keys()
    assert all(tensor.equal(attacked_run[name]) for name, tensor in alone.items())


def survey(**table: object) -> Survey:
    data = {"silos": SILOS, "label": "died", "categorical": ["stage"]} | table
    return Survey.of("study", RemoteTables.model_validate(data))


def test_a_summary_holds_no_cell_of_a_number_column(tmp_path: Path) -> None:
    frame = patients(120, 0).with_columns(pl.col("lab").cast(pl.Float64))
    frame[3, "lab"] = SECRET
    frame.write_csv(tmp_path / "a.csv")
    text = summarise_table("a", tmp_path / "a.csv", survey()).model_dump_json()
    assert str(SECRET) not in text
    sent = json.loads(text)
    assert {key for column in sent["columns"] for key in column} <= {
        *("name", "place", "kind", "count", "numbers", "strays", "total", "squares", "levels"),
        *("other", "identifier", "auroc", "zero", "code"),
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
        patients(119, 0).write_csv(folder / "a.csv")
        other = summarise_table("a", folder / "a.csv", survey()).model_dump_json().encode()
        assert status("a", other, by="a") == 409
        assert status("a", body, by="a") == 200


def test_a_silo_that_is_refused_again_and_again_fills_neither_the_audit_nor_the_log(tmp_path: Path) -> None:
    said: list[str] = []
    summaries = Summaries(survey(), Audit(tmp_path / "audit.jsonl"), said.append)
    for place in range(1000):
        summaries.refuse("a", "rows: too many")
        summaries.refuse("a", f"column {place}: too long")
    summaries.refuse("b", "rows: too many")
    assert said[0] == said[-1] == "rows: too many"
    assert len(said) == 21
    assert len((tmp_path / "audit.jsonl").read_text().splitlines()) == 21


def test_a_silo_whose_summaries_are_refused_ten_times_has_to_pause_and_others_have_not(folder: Path) -> None:
    summaries = Summaries(survey())
    app, address = make_survey_app(summaries, None), Address(port=0, insecure=True)
    honest = {name: summarise_table(name, folder / f"{name}.csv", survey()) for name in SILOS}
    forged = honest["a"].model_copy(update={"rows": 1}).model_dump_json()
    with listening(app, address) as port, httpx.Client(base_url=address.url(port)) as client:
        sent = [client.put("/v1/silos/a/summary", content=forged) for _ in range(12)]
        assert [answer.status_code for answer in sent] == [422] * 10 + [429] * 2
        assert "10 summaries of silo 'a' were refused" in sent[-1].text
        assert client.put("/v1/silos/b/summary", content=honest["b"].model_dump_json()).status_code == 200
    assert summaries.missing == ["a"]


def test_without_one_silo_the_survey_ends_after_its_patience_if_enough_have_answered(folder: Path) -> None:
    summaries = Summaries(survey())
    made = summarise_table("a", folder / "a.csv", survey())
    threading.Timer(0.1, summaries.put, ("a", made)).start()
    assert list(summaries.wait(1, 0.2)) == ["a"]
    assert survey().preprocessing(summaries.found).label.classes == ("no", "yes")
