"""`fedilc inspect`: how silos differ, before training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedilc.cli.console import drawn, make_console, quick_imports, say, say_notes
from fedilc.cli.options import (
    DataDir,
    TableOptions,
    forget_flags,
    not_a_file,
    use_data_folder,
    with_table_options,
)
from fedilc.errors import ConfigError


@with_table_options
def inspect(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA...",
            help="A table with --silo-column, one table per silo, a TOML file, or heart-disease.",
        ),
    ],
    tables: TableOptions,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the small network's initial weights.")] = 0,
    out: Annotated[
        Path | None, typer.Option(callback=not_a_file, help="The folder for results. (default: inspect/NAME)")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Show how silos differ in size, labels, missing values and columns, and what this suggests.

    DATA may also be the folder of a run over tables of other machines (fedilc serve); the counts and sums
    that silos sent are then inspected.
    """
    with quick_imports():
        from fedilc.data.checks.notes import as_settings
        from fedilc.report.inspection_report import inspection_picture, inspection_tables
        from fedilc.report.tables import write_tables
        from fedilc.storage.run_folder import SUMMARIES
        from fedilc.studies.inspection import inspect_run, inspect_tables, write_inspection
        from fedilc.studies.study.data import StudyTables, study_data

    use_data_folder(data_dir)
    is_run = len(data) == 1 and (Path(data[0]) / SUMMARIES).exists()
    if is_run:
        if given := list(tables.given()):
            raise ConfigError(
                f"--{given[0].replace('_', '-')} cannot be given for {data[0]}, whose tables are elsewhere; "
                "set it in the section [data] of a new run"
            )
        found = inspect_run(Path(data[0]))
    else:
        read = study_data(data, prepared=True, **tables.given())
        if not isinstance(read, StudyTables):
            raise ConfigError(f"{data[0]} holds no tables; give tables, or an experiment that reads tables")
        found = inspect_tables(read.name, read.tables, seed)
    if is_run:
        forget_flags()
    console = make_console()
    folder = out or Path("inspect") / found.name
    say_notes(console, folder, found.notes, found.details, () if is_run else found.proposals)
    if is_run and found.proposals:
        wanted = as_settings(found.proposals)
        say(console, f"to apply all these proposals, set in the section [data] of the run: {wanted}")
    shown = inspection_tables(found)
    for table in shown:
        console.print(table)
    write_tables(folder, shown)
    write_inspection(folder, found)
    line = drawn(inspection_picture, folder / "shift.png", found)
    say(console, found.suggestion())
    say(console, f"{line}results: {folder} (tables.md, tables/*.csv, inspection.json)")
