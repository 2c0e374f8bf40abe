"""`fedilc flower new`: write an app folder for Flower."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedilc.cli.options import ExperimentName

flower_app = typer.Typer(
    name="flower",
    help="Train over the nodes of Flower, in simulation or deployed.",
    no_args_is_help=True,
    callback=lambda: None,
)


@flower_app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create.")],
    experiment: ExperimentName = "color-digits",
) -> None:
    """Write an app folder for `flwr run`; then fill in make_silo in its client_app.py."""
    from fedilc.runtimes.flower.template import new_app

    silos = new_app(folder, experiment)
    options = f'--federation-config "num-supernodes={silos} client-resources-num-cpus=1"'
    sys.stdout.write(f"made {folder}: fill in make_silo in {folder / 'client_app.py'}\n")
    sys.stdout.write(f"simulate: flwr run {folder} --stream {options}\n")
    if importlib.util.find_spec("flwr") is None:
        sys.stdout.write("Flower is not installed here: pip install 'fedilc[flower]'\n")
