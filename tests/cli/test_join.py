"""`fedilc join`: what it shows while it works, and what it refuses in one sentence."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import polars as pl
import pytest
from command import Refusal
from rich.console import Console

from fedilc.cli import join
from fedilc.runtimes.rest.auth import Tokens, add_token
from fedilc.runtimes.rest.http_client import Kind
from fedilc.runtimes.rest.membership import STRIKES
from fedilc.runtimes.rest.task_queue import TaskQueue
from rest import queue_of, remote, served


def said(terminal: bool, *sentences: str | tuple[str, Kind]) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, color_system=None)
    progress = join.SiloProgress("north", console)
    with progress.status or nullcontext():
        for sentence in sentences:
            progress(*([sentence] if isinstance(sentence, str) else sentence))
    return file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_may_be_called_anything(terminal: bool) -> None:
    assert "joined [/b] odd [link=x]" in said(terminal, "joined [/b] odd [link=x], fedsgd, 3 rounds")


@pytest.mark.parametrize("terminal", [True, False])
def test_what_another_machine_calls_a_run_cannot_move_the_cursor(terminal: bool) -> None:
    assert "\x1b]0;" not in said(terminal, "joined \x1b]0;evil\x07\x1b[2J, fedsgd, 3 rounds")


def test_a_log_has_a_line_about_rounds_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, Kind]] = [(f"round {number} of 3: gradients", "round") for number in (1, 2)]
    assert said(False, "joined study", *steps) == "north: joined study\n"
    monkeypatch.setattr(join, "LINE_SECONDS", 0.0)
    lines = ["joined study", *(sentence for sentence, _ in steps)]
    assert said(False, "joined study", *steps) == "".join(f"north: {line}\n" for line in lines)


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
    "a label without a table": ("--silo a --provider own:fails --label died", "leave out --label"),
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
    for _ in range(STRIKES):
        queue.strike("a", "its body is nonsense")
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
