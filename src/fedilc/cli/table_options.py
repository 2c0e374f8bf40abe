"""Options of commands that read users' tables."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fedilc.errors import ConfigError

Data = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA...",
        help="A table with --silo-column, one table per silo, a TOML file, or heart-disease.",
    ),
]
Label = Annotated[str | None, typer.Option(help="The label's column, or a comparison such as 'num>0'.")]
SiloColumn = Annotated[
    str | None, typer.Option(help="The column that names silos (default: each file is a silo)")
]
Categorical = Annotated[
    list[str] | None, typer.Option(help="A column of numbers that are names; may repeat.")
]
Categories = Annotated[
    list[str] | None,
    typer.Option(
        help="The names of a column, if they are not to be found: ward=medical,surgical; may repeat."
    ),
]
Drop = Annotated[list[str] | None, typer.Option(help="A column that is not used; may repeat.")]
Keep = Annotated[
    list[str] | None, typer.Option(help="A column to use although it looks like an identifier; may repeat.")
]
Positive = Annotated[str | None, typer.Option(help="The value of the label that counts as 1.")]
Missing = Annotated[
    list[str] | None,
    typer.Option(help="A further mark of missing values, such as -9, or chol=0 for one column; may repeat."),
]


def table_options(**given: object) -> dict[str, Any]:
    """Return the options of tables that were given, as `read_tables` takes them.

    >>> table_options(positive=None, drop=["mrn"], categories=["ward=a,b"])
    {'drop': ['mrn'], 'categories': {'ward': ['a', 'b']}}
    """
    found: dict[str, Any] = {name: value for name, value in given.items() if value}
    if "categories" in found:
        found["categories"] = dict(_categories(text) for text in found["categories"])
    return found


def _categories(text: str) -> tuple[str, list[str]]:
    column, _, names = text.partition("=")
    listed = [name.strip() for name in names.split(",")]
    if not column or not all(listed):
        raise ConfigError(
            f"--categories {text!r} is not a column and its names, such as ward=medical,surgical"
        )
    return column, listed
