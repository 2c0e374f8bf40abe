"""`fedilc evaluate`: how well the trained model does on a site's own table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedilc.cli.console import make_console
from fedilc.cli.options import Authority, Criterion, ModelFunction, RunFolderOrUrl, SiloTokenFile
from fedilc.cli.predict import load_run
from fedilc.cli.quick_imports import quick_imports
from fedilc.errors import writing


def evaluate(
    run: RunFolderOrUrl,
    table: Annotated[
        Path,
        typer.Argument(help="Rows with labels: .csv, .xlsx, .parquet, .npz, ..., or a folder of images."),
    ],
    criterion: Criterion = "validation",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file.")] = None,
    model: ModelFunction = None,
    token_file: SiloTokenFile = None,
    ca: Authority = None,
) -> None:
    """Measure the trained model on a site's table, with 95 % intervals; nothing leaves the machine."""
    with quick_imports():
        import json
        from dataclasses import asdict

        from rich.table import Table

        from fedilc.evaluation.estimability import size
        from fedilc.evaluation.intervals import score_intervals

    loaded = load_run(run, criterion, model, token_file, ca)
    y, logits = loaded.labelled(table)
    found = score_intervals(loaded.loss, y, logits)
    title = f"{table} · round {loaded.round} · {size(loaded.loss, y)}"
    shown = Table(title=title, box=None, title_justify="left")
    shown.add_column("score")
    shown.add_column("value [95% interval]")
    for name, interval in found.items():
        shown.add_row(name.replace("_", " "), str(interval))
    make_console().print(shown)
    if json_file is not None:
        numbers = {name: asdict(interval) for name, interval in found.items()}
        content = {"run": str(run), "round": loaded.round, "rows": len(y), "scores": numbers}
        with writing(json_file):
            json_file.write_text(json.dumps(content, indent=2) + "\n")
