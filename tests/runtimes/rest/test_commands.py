"""`fedilc serve` and `fedilc join` refuse in one sentence, with exit code 2, and leave nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from command import Refusal

from fedilc.runtimes import rest as rest_runtime
from fedilc.runtimes.rest.task_queue import STRIKES, TaskQueue
from fedilc.runtimes.rest.tokens import Tokens, add_token
from rest import post, queue_of, remote, served

COLUMNS = ["age", "lactate", "weight"]
OWN = """
import torch
from fedilc import Silo

def fails(name):
    raise OSError("the database is away")

def no_silo(name):
    return 3

def other_shape(name):
    return Silo(name, torch.zeros(4, 7), torch.zeros(4))

def other_network():
    return torch.nn.Linear(3, 1)
"""


@pytest.fixture(autouse=True)
def _empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command runs in an empty folder; a command that imports from it gives the path back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_serve_without_the_packages_of_a_server_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    monkeypatch.setattr(rest_runtime, "find_spec", lambda name: None if name == "fastapi" else name)
    sentence = refusal("serve", "color-digits", "--insecure")
    assert sentence.startswith("a coordinator needs fastapi,")
    assert sentence.endswith("pip install 'fedilc[serve]'")


SERVING = {
    "beyond loopback without tokens": ("--host 0.0.0.0 --allow-insecure", "--tokens FILE"),
    "beyond loopback in the open": ("--host 0.0.0.0 --insecure --tokens all.json", "--allow-insecure"),
    "no TLS and nothing said": ("--tokens all.json", "--cert and --key"),
    "a certificate without its key": ("--cert cert.pem --tokens all.json", "give both"),
    "no such certificate": ("--cert cert.pem --key key.pem --tokens all.json", "does not exist"),
    "no such token file": ("--insecure --tokens none.json", "none.json"),
    "a silo without a token": ("--insecure --tokens some.json", "fedilc token flip-0.75"),
    "another wire": ("--insecure --wire float8", "exact or float16"),
    "more silos than there are": ("--insecure --min-silos 6", "min_silos"),
    "no silos": ("--insecure --min-silos 0", "min_silos"),
    "no time": ("--insecure --round-timeout 0", "--round-timeout"),
    "no such port": ("--insecure --port 70000", "--port"),
    "no such host": ("--insecure --host 127.0.0.1x", "is not one"),
    "another algorithm": ("--insecure --algorithm best", "best"),
    "no such setting": ("--insecure --set colour=red", "colour"),
    "a network from nowhere": ("--insecure --model nowhere:build", "nowhere"),
}


@pytest.mark.parametrize("what", SERVING)
def test_a_coordinator_that_cannot_or_should_not_start_says_why(
    what: str, refusal: Refusal, tmp_path: Path
) -> None:
    names = [f"flip-{flip}" for flip in ("0.15", "0.30", "0.45", "0.60", "0.75")]
    for name in names:
        add_token(tmp_path / "all.json", name)
    add_token(tmp_path / "some.json", names[0])
    for name in names[1:4]:
        add_token(tmp_path / "some.json", name)
    words, reason = SERVING[what]
    assert reason in refusal("serve", "color-digits", *words.split(), "--out", "run")
    assert not (tmp_path / "run").exists()


def test_there_must_be_something_to_serve_or_to_show(refusal: Refusal, tmp_path: Path) -> None:
    assert "name an experiment" in refusal("serve", "--insecure")
    assert "nothing.toml" in refusal("serve", "nothing.toml", "--insecure")
    assert "holds no run" in refusal("serve", "--view", tmp_path, "--insecure")


JoinReply = tuple[str, TaskQueue]


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[JoinReply]:
    """A coordinator with tokens for `a`, `b` and, by mistake, `c`; the files of the silo `a` lie about."""
    for name in "abc":
        (tmp_path / f"{name}.token").write_text(add_token(tmp_path / "tokens.json", name))
        (tmp_path / f"{name}.token").chmod(0o600)
    (tmp_path / "own.py").write_text(OWN)
    table = pl.DataFrame({name: [0.5, 1.5, 2.5, 3.5] for name in COLUMNS} | {"died": [0, 1, 0, 1]})
    table.write_csv(tmp_path / "good.csv")
    table.rename({"age": "years"}).write_csv(tmp_path / "other.csv")
    table.with_columns(name=pl.lit(1)).write_csv(tmp_path / "more.csv")
    table.with_columns(age=pl.lit("old")).write_csv(tmp_path / "words.csv")
    table.write_csv(tmp_path / "table.xls")
    queue = queue_of(remote(data={"columns": COLUMNS}))
    with served(queue, Tokens.read(tmp_path / "tokens.json")) as client:
        yield str(client.base_url), queue


JOINING = {
    "a wrong token": ("--silo a --token-file b.token --data good.csv --label died", "token"),
    "no token": ("--silo a --data good.csv --label died", "token"),
    "no token file": ("--silo a --token-file none --data good.csv --label died", "token file none"),
    "a token file without a token": ("--silo a --token-file own.py --data good.csv", "does not hold a token"),
    "an unknown silo": ("--silo c --token-file c.token --data good.csv --label died", "has no silo 'c'"),
    "no table": ("--silo a --token-file a.token --data none.csv", "none.csv does not exist"),
    "a table of another kind": ("--silo a --token-file a.token --data table.xls --label died", "table.xls"),
    "no such label": ("--silo a --token-file a.token --data good.csv --label lived", "lived"),
    "other columns": ("--silo a --token-file a.token --data other.csv --label died", "age"),
    "more columns": ("--silo a --token-file a.token --data more.csv --label died", "name"),
    "words": ("--silo a --token-file a.token --data words.csv --label died", "age"),
    "no data": ("--silo a --token-file a.token", "--data, --provider and --experiment"),
    "data twice": ("--silo a --token-file a.token --data good.csv --provider own:fails", "one of --data"),
    "a provider that fails": ("--silo a --token-file a.token --provider own:fails", "the database is away"),
    "a provider of no silo": ("--silo a --token-file a.token --provider own:no_silo", "int"),
    "a provider of another shape": ("--silo a --token-file a.token --provider own:other_shape", "[7]"),
    "a provider that is not there": ("--silo a --token-file a.token --provider own:none", "none"),
    "a provider from nowhere": ("--silo a --token-file a.token --provider nowhere:make", "nowhere"),
    "a provider that is no name": ("--silo a --token-file a.token --provider own", "module:function"),
    "another network": (
        "--silo a --token-file a.token --data good.csv --label died --model own:other_network",
        "parameter",
    ),
    "an authority that is not there": (
        "--silo a --token-file a.token --data good.csv --label died --ca none.pem",
        "none.pem",
    ),
    "no such device": (
        "--silo a --token-file a.token --data good.csv --label died --device tpu",
        "tpu",
    ),
}


@pytest.mark.parametrize("what", JOINING)
def test_a_silo_that_cannot_take_part_says_why(what: str, refusal: Refusal, coordinator: JoinReply) -> None:
    url, queue = coordinator
    words, reason = JOINING[what]
    assert reason in refusal("join", url, *words.split())
    assert all(silo.strikes == 0 for silo in queue.silos.values())


def test_a_silo_that_was_set_aside_is_told_so_and_ends(refusal: Refusal, coordinator: JoinReply) -> None:
    url, queue = coordinator
    open_request = post(queue)
    for _ in range(STRIKES):
        queue.accept("a", 1, "matched-update", open_request.name, b"nonsense")
    joining = ["--silo", "a", "--token-file", "a.token", "--data", "good.csv", "--label", "died"]
    assert "set aside" in refusal("join", url, *joining)


def test_a_coordinator_that_cannot_be_reached_is_given_up_when_told_so(
    refusal: Refusal, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("age,label\n1,0\n2,1\n")
    joining = ["--silo", "a", "--data", "t.csv", "--give-up-after", "0.1"]
    assert "could not be reached for 0.1 s" in refusal("join", "http://127.0.0.1:9", *joining)
    assert "--allow-insecure" in refusal("join", "http://192.0.2.1", *joining)
    assert "is not an address" in refusal("join", "coordinator", *joining)
