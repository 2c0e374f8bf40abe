"""Options of commands that read users' tables, and the silos that these tables become."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.errors import ConfigError

if TYPE_CHECKING:
    from fedilc.data.tables.silo_tables import SiloTables

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
Drop = Annotated[list[str] | None, typer.Option(help="A column that is not used; may repeat.")]
Keep = Annotated[
    list[str] | None, typer.Option(help="A column to use although it looks like an identifier; may repeat.")
]
Positive = Annotated[str | None, typer.Option(help="The value of the label that counts as 1.")]
Missing = Annotated[
    list[str] | None,
    typer.Option(help="A further mark of missing values, such as -9, or chol=0 for one column; may repeat."),
]


def open_tables(
    data: list[str],
    label: str | None,
    silo_column: str | None,
    categorical: list[str] | None,
    drop: list[str] | None,
    keep: list[str] | None,
    positive: str | None,
    missing: list[str] | None,
) -> tuple[str, SiloTables]:
    """Return a name for the data, and the silos' tables."""
    from fedilc.config import read_experiment, shipped_experiments
    from fedilc.config.table_sources import TableSource
    from fedilc.data.tables.silo_tables import read_tables

    if len(data) == 1 and (data[0] in shipped_experiments() or data[0].endswith(".toml")):
        settings, folder = read_experiment(data[0])
        if not isinstance(settings.data, TableSource):
            raise ConfigError(f"{data[0]} does not read tables; give files, or an experiment that does")
        return settings.name, settings.data.tables(folder)
    if label is None:
        raise ConfigError("say with --label which column holds the label")
    paths = [Path(name) for name in data]
    tables = read_tables(
        paths,
        label=label,
        silo_column=silo_column,
        categorical=categorical or (),
        drop=drop or (),
        keep=keep or (),
        positive=positive,
        missing=missing or (),
    )
    name = paths[0].name.partition(".")[0] if len(paths) == 1 else paths[0].resolve().parent.name
    return name, tables
