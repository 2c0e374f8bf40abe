"""Options of the commands that read users' tables."""

from __future__ import annotations

import csv
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Annotated, Any

import typer

from fedilc.errors import ConfigError

Names = list[str] | None


@dataclass(frozen=True)
class TableOptions:
    """The options, each as a user may give it."""

    label: Annotated[
        str | None, typer.Option(help="The label's column, or a comparison such as 'num>0'.")
    ] = None
    silo_column: Annotated[
        str | None, typer.Option(help="The column that names silos (default: each file is a silo)")
    ] = None
    positive: Annotated[str | None, typer.Option(help="The value of the label that counts as 1.")] = None
    categorical: Annotated[Names, typer.Option(help="A column whose numbers are categories; may repeat.")] = (
        None
    )
    categories: Annotated[
        Names,
        typer.Option(
            help="The categories of a column, or the label's classes, if not those in the data: "
            "ward=medical,surgical; may repeat."
        ),
    ] = None
    columns: Annotated[
        Names, typer.Option(help="Use only these columns, separated by commas; may repeat. (default: all)")
    ] = None
    drop: Annotated[Names, typer.Option(help="A column that is not used; may repeat.")] = None
    exclude_site: Annotated[Names, typer.Option(help="A site to ignore altogether; may repeat.")] = None
    keep: Annotated[
        Names, typer.Option(help="A column to use although it looks like an identifier; may repeat.")
    ] = None
    missing: Annotated[
        Names,
        typer.Option(
            help="A further mark of missing values, such as -9, or job=8,9 for one column; may repeat."
        ),
    ] = None

    min_category: Annotated[
        int | None,
        typer.Option(min=1, help="The rows of a silo that a category or a sum needs (default: 10)"),
    ] = None
    round_survey: Annotated[
        int | None, typer.Option(min=2, help="Round silos' counts and sums to this unit (default: exact)")
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the options that were given, as `study_data` takes them.

        >>> TableOptions(label="died", drop=["mrn"], categories=["ward=a,b"]).given()
        {'label': 'died', 'categories': {'ward': ['a', 'b']}, 'drop': ['mrn']}
        """
        found = {name: value for name, value in asdict(self).items() if value}
        if self.categories:
            found["categories"] = dict(map(_categories, self.categories))
        if self.columns:
            found["columns"] = [name for text in self.columns for name in _names(text)]
        return found


def with_table_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `TableOptions`, which it takes as its argument `tables`."""
    shared = inspect.signature(TableOptions, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True).parameters

    @wraps(command)
    def wrapped(**values: Any) -> None:
        tables = TableOptions(**{name: values.pop(name) for name in shared})
        command(**values, tables=tables)

    parameters = [
        parameter.replace(kind=parameter.KEYWORD_ONLY)
        for name, one in own.items()
        for parameter in (shared.values() if name == "tables" else [one])
    ]
    vars(wrapped)["__signature__"] = inspect.Signature(parameters)
    return wrapped


def _names(text: str) -> list[str]:
    """Return the columns that a text lists; a name with a comma stands in quotes, as in a CSV file.

    >>> _names('age, sex,"weight, kg"')
    ['age', 'sex', 'weight, kg']
    """
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not names or not all(names):
        raise ConfigError(f"--columns {text!r} is not a list of columns, such as age,sex,lactate")
    return names


def _categories(text: str) -> tuple[str, list[str]]:
    column, _, names = text.partition("=")
    listed = [name.strip() for name in names.split(",")]
    if not column or not all(listed):
        raise ConfigError(
            f"--categories {text!r} is not a column and its names, such as ward=medical,surgical"
        )
    return column, listed
