"""What commands print: text as it is, tables, and a picture that may fail."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from terminals import in_terminal

from fedilc.cli.console import drawn, make_console, make_table, say
from fedilc.errors import ConfigError, FedILCWarning


def test_a_console_that_is_no_terminal_is_wide_enough_for_tables() -> None:
    console = make_console()
    assert not console.is_terminal
    assert console.width == 140


def test_text_is_printed_as_it_is() -> None:
    file = io.StringIO()
    sentence = "run folder: a[bold]b/[/]" + 30 * "/long"
    say(Console(file=file, width=40), sentence)
    assert file.getvalue() == f"{sentence}\n"


def test_columns_of_numbers_are_aligned_to_the_right() -> None:
    table = make_table("silo", "rows", numbers=("rows",))
    table.add_row("north", "7")
    table.add_row("a", "1,000")
    shown = filter(str.strip, in_terminal(table, 40).splitlines())
    heading, _, first, second = (line.rstrip() for line in shown)
    assert heading.split() == ["silo", "rows"]
    assert (first.index("7"), first.split()) == (second.index("1,000") + 4, ["north", "7"])


def test_a_picture_is_named_once_it_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "loss.png"
    assert drawn(Path.write_text, picture, "drawn") == f"picture: {picture}\n"
    assert picture.read_text() == "drawn"


def test_a_picture_that_fails_is_a_note_and_not_an_error(tmp_path: Path) -> None:
    def fail(picture: Path) -> None:
        raise ConfigError(f"{picture} cannot be written")

    with pytest.warns(FedILCWarning, match=r"loss\.png cannot be written"):
        assert drawn(fail, tmp_path / "loss.png") == ""
