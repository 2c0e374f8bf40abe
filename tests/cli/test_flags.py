"""Texts of the package name options as Python does; commands print them with the flags that they have."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from command import Refusal
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from fedilc.cli.app import app
from fedilc.cli.options import FlagGroup, as_flags, find_command, with_flags
from fedilc.errors import option


def choose(*words: str) -> None:
    """Let a command be the one that runs."""
    group = get_command(app)
    assert isinstance(group, FlagGroup)
    group.parse_args(group.make_context("fedilc", [*words], resilient_parsing=True), [*words])


@pytest.mark.parametrize(
    ("words", "text", "printed"),
    [
        (["run"], "continue it with `resume=True`", "continue it with --resume"),
        (["run"], "leave it out (`model.hidden=none`)", "leave it out (--set model.hidden=none)"),
        (["run"], 'use `drop = ["billing"]`', 'use `drop = ["billing"]`'),
        (["study"], 'use `drop = ["a b", "c"]`', "use --drop 'a b' --drop c"),
        (["study"], 'use `exclude_sites = ["north"]`', "use --exclude-site north"),
        (["study"], 'use `categories = {ward = ["a", "b c"]}`', "use --categories 'ward=a,b c'"),
        (["study"], "(`silo_column`)", "(--silo-column)"),
        (["data", "eicu"], "lower `min_uses`", "lower --min-uses"),
        (["serve"], "give `tokens=FILE` (`fedilc token NAME`)", "give --tokens FILE (`fedilc token NAME`)"),
        (["list"], "give `tokens=FILE`", "give `tokens=FILE`"),
    ],
)
def test_a_text_has_the_flags_of_the_command_that_runs(words: list[str], text: str, printed: str) -> None:
    choose(*words)
    assert with_flags(text) == printed


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1, max_size=4))
def test_every_name_in_a_note_comes_out_as_one_word_of_the_shell(names: list[str]) -> None:
    choose("study")
    wanted = [word for name in names for word in ("--drop", name)]
    assert shlex.split(with_flags(option("drop", names))) == wanted
    assert shlex.split(as_flags([("drop", name) for name in names])) == wanted


def test_the_command_is_found_below_its_group() -> None:
    names, command = find_command(get_command(app), ["data", "eicu", "--from", "x"])
    assert names == ["data", "eicu"]
    assert command.name == "eicu"


def test_a_refusal_of_the_package_names_flags_on_the_command_line(refusal: Refusal, tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    table.write_text("age,died\n1,0\n2,1\n")
    assert refusal("study", table).startswith("--label is missing")
    assert refusal("study", table, "--label", "died").endswith(
        "name the column of silos with --silo-column, or give a file per silo"
    )
