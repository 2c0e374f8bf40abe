"""The options of commands that read tables are one group, which a command gets as one argument."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from fedilc.cli.options import TableOptions, with_table_options
from fedilc.errors import ConfigError


def call(*words: str) -> list[tuple[str, TableOptions, int]]:
    app, seen = typer.Typer(), []

    @app.command()
    @with_table_options
    def command(
        name: Annotated[str, typer.Argument()], tables: TableOptions, seed: Annotated[int, typer.Option()] = 0
    ) -> None:
        """Say what was given."""
        seen.append((name, tables, seed))

    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen


def test_the_command_gets_its_own_options_and_those_of_tables() -> None:
    words = ("x", "--label", "num>0", "--drop", "a", "--drop", "b", "--seed", "3")
    assert call(*words) == [("x", TableOptions(label="num>0", drop=["a", "b"]), 3)]
    assert call("x") == [("x", TableOptions(), 0)]


def test_what_was_given_is_what_study_data_takes() -> None:
    assert TableOptions().given() == {}
    assert TableOptions(label="died").given() == {"label": "died"}
    options = TableOptions(silo_column="site", missing=["-9"], categories=["ward=a, b", "sex=m,f"])
    assert options.given() == {
        "silo_column": "site",
        "categories": {"ward": ["a", "b"], "sex": ["m", "f"]},
        "missing": ["-9"],
    }


@pytest.mark.parametrize("text", ["ward", "=a,b", "ward=a,,b", "ward="])
def test_categories_that_are_none_are_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a column and its categories, such as ward=medical"):
        TableOptions(categories=[text]).given()
