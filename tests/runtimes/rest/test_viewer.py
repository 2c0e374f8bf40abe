"""The page of a run folder, whichever runtime trained it, and its model, which only silos get."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import polars as pl
import pytest
from command import Refusal, fedilc

from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.auth import Tokens, add_token
from fedilc.runtimes.rest.coordinator import listening, make_app
from fedilc.runtimes.rest.http_client import CoordinatorError, HttpClient, fetch_run
from fedilc.runtimes.rest.viewer import FolderView, publish_model
from fedilc.storage.files import with_digest
from fedilc.storage.run_folder import RunFolder
from rest import bearer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over two tables, and the table of a third site."""
    folder, random = tmp_path_factory.mktemp("published"), np.random.default_rng(0)
    for name in ("a", "b", "site"):
        x = random.normal(size=40).round(4)
        target = folder / ("silos" if name != "site" else ".") / f"{name}.csv"
        target.parent.mkdir(exist_ok=True)
        pl.DataFrame({"u": x, "w": ["p", "q"] * 20, "y": (x > 0).astype(int)}).write_csv(target)
    (folder / "e.toml").write_text(
        'rounds = 3\nlearning_rate = 0.05\nalgorithm = "fedsgd"\n[data]\nsource = "tables"\n'
        'files = "silos/*.csv"\nlabel = "y"\n[model]\nname = "mlp"\nhidden = [4]\n'
    )
    with pytest.warns(Warning, match="column 'u' alone predicts"):
        fedilc("run", folder / "e.toml", "--out", folder / "run")
    return folder / "run"


@pytest.fixture
def url(run: Path, tmp_path: Path) -> Iterator[str]:
    (tmp_path / "a.token").write_text(add_token(tmp_path / "tokens.json", "a"))
    (tmp_path / "viewer.token").write_text(add_token(tmp_path / "tokens.json", "me", "viewers"))
    tokens = Tokens.read(tmp_path / "tokens.json")
    app, address = make_app(FolderView(run), tokens), Address(port=0, insecure=True)
    publish_model(app, run, tokens)
    with listening(app, address) as port:
        yield address.url(port)


def test_a_silo_evaluates_the_published_model_on_its_own_machine(run: Path, url: str, tmp_path: Path) -> None:
    site = run.parent / "site.csv"
    there = fedilc("evaluate", url, site, "--token-file", tmp_path / "a.token")
    assert there == fedilc("evaluate", run, site)
    fedilc("predict", url, site, "-o", tmp_path / "s.csv", "--token-file", tmp_path / "a.token")
    assert len(pl.read_csv(tmp_path / "s.csv")) == 40


def test_nobody_else_gets_it_and_nothing_else_is_given(run: Path, url: str, tmp_path: Path) -> None:
    silo, viewer = (bearer((tmp_path / f"{name}.token").read_text()) for name in ("a", "viewer"))
    with httpx.Client(base_url=url) as client:
        for path in ("/v1/model", "/v1/model/weights"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers=viewer).status_code == 401
        about = client.get("/v1/model", headers=silo).json()
        assert "silos" not in about["run"]
        assert about["preprocessing"] == json.loads((run / "preprocessing.json").read_text())
        sent = client.get("/v1/model/weights", headers=silo).content
        assert sent == (run / "best-validation.safetensors").read_bytes()


def test_what_is_not_published_is_one_sentence(
    run: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused, site = Refusal(monkeypatch, capsys), run.parent / "site.csv"
    assert "give a silo's token with --token-file" in refused("evaluate", url, site)
    assert "leave out --criterion last" in refused("evaluate", url, site, "--criterion", "last")
    with listening(make_app(FolderView(run), None), Address(port=0, insecure=True)) as port:
        assert "publishes no model" in refused("evaluate", f"http://127.0.0.1:{port}", site)


def folder(tmp_path: Path, rounds: int) -> Path:
    run = RunFolder(tmp_path / "run")
    run.create({"rounds": 3, "algorithm": "fedsgd", "federation": "study", "silos": {"a": {}, "b": {}}})
    for number in range(1, rounds + 1):
        record = {"round": number, "train_loss": 0.5, "silos": {"a": {"examples": 9, "train_loss": 0.4}}}
        run.save(record | ({"set_aside": {"b": "too long"}} if number == 2 else {}), 0.1, {}, {}, None)
    run.release()
    return run.path


def test_a_complete_run_is_over_and_its_silos_have_replied_or_are_lost(tmp_path: Path) -> None:
    view = FolderView(folder(tmp_path, 3))
    shown = view.snapshot()
    assert view.is_over()
    assert (shown["run"], shown["completed"], shown["outcome"]) == ("study", 3, "complete")
    silos = {silo["name"]: silo for silo in shown["silos"]}
    assert (silos["a"]["state"], silos["a"]["examples"], silos["a"]["loss"]) == ("answered", 9, 0.4)
    assert (silos["b"]["state"], silos["b"]["reason"]) == ("lost", "set aside in round 2: too long")


def test_a_silo_that_points_against_the_others_in_the_last_round_is_shown_with_a_notice(
    tmp_path: Path,
) -> None:
    run = RunFolder(tmp_path / "run")
    run.create({"rounds": 2, "algorithm": "fedsgd", "federation": "study", "silos": {"a": {}, "b": {}}})
    record = {"train_loss": 0.5, "silos": {"a": {"examples": 9}, "b": {"examples": 9}}}
    run.save(record | {"round": 1, "against": {"a": 12}}, 0.1, {}, {}, None)
    run.save(record | {"round": 2, "against": {"b": 10}}, 0.1, {}, {}, None)
    run.release()
    a, b = FolderView(run.path).snapshot()["silos"]
    assert a["notice"] is None
    assert b["notice"] == "for 10 rounds its updates have pointed against those of most other silos"


def test_an_interrupted_run_says_how_many_rounds_are_done(tmp_path: Path) -> None:
    assert FolderView(folder(tmp_path, 1)).snapshot()["outcome"] == "1 of 3 rounds are done"


def test_a_run_before_its_first_round_can_be_shown(tmp_path: Path) -> None:
    assert FolderView(folder(tmp_path, 0)).snapshot()["round"] == 0


def test_a_server_that_describes_a_larger_network_than_it_sends_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of that size is allocated: the description is compared with the weights first."""
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    facts = RunFolder(copy).settings()
    facts["model"]["hidden"] = [3000, 3000]
    (copy / "run.json").write_text(json.dumps(with_digest(facts)))
    app, address = make_app(FolderView(copy), None), Address(port=0, insecure=True)
    publish_model(app, copy, None)
    with listening(app, address) as port:
        said = Refusal(monkeypatch, capsys)("evaluate", address.url(port), run.parent / "site.csv")
    assert re.search(r"describes a network with 90\d+ numbers, but has \d+ weights; it is not used", said)


def test_a_published_description_has_a_limit(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedilc.runtimes.rest.http_client.MAX_DESCRIPTION_BYTES", 100)
    line = HttpClient(url, (tmp_path / "a.token").read_text())
    with pytest.raises(CoordinatorError, match="sends more than the 100 bytes expected"):
        fetch_run(line, tmp_path)
    line.close()
