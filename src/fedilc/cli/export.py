"""`fedilc export`: the trained model as a file that needs no FedILC, its preprocessing beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedilc.cli.console import make_console, say
from fedilc.cli.options import Criterion, ModelFunction, RunFolderPath
from fedilc.cli.predict import load_run
from fedilc.cli.quick_imports import quick_imports


def export(
    run: RunFolderPath,
    out: Annotated[Path, typer.Argument(help="The file for the model, such as model.pt2.")],
    criterion: Criterion = "validation",
    model: ModelFunction = None,
) -> None:
    """Write the trained model as a file of torch.export, and its preprocessing as JSON."""
    with quick_imports():
        from fedilc.training.loaded_model import export_model

    written = export_model(load_run(run, criterion, model), out)
    say(make_console(), f"written: {', '.join(map(str, written))}")
