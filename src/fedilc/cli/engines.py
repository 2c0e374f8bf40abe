"""`fedilc nvflare export` and `fedilc flower new`: write an experiment for another engine."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedilc.cli.console import make_console, say
from fedilc.cli.options import (
    Changes,
    DataDir,
    ExperimentName,
    Rounds,
    Seed,
    WireName,
    as_changes,
    only_one,
    use_data_folder,
)
from fedilc.errors import ConfigError

nvflare_app = typer.Typer(
    name="nvflare", help="Train over the sites of NVIDIA FLARE.", no_args_is_help=True, callback=lambda: None
)
flower_app = typer.Typer(
    name="flower",
    help="Train over the nodes of Flower, in simulation or deployed.",
    no_args_is_help=True,
    callback=lambda: None,
)


def _refuse_study(experiment: str) -> None:
    """Raise if the file is a study over silos, whose tasks these engines do not carry."""
    from fedilc.cli.serve_study import read_remote_study

    if read_remote_study(experiment) is not None:
        raise ConfigError(
            f"{experiment} is a study over silos, which NVIDIA FLARE and Flower do not carry: its stacks of "
            "models and its scores are messages of `fedilc serve` and `fedilc join`; use these"
        )


@nvflare_app.command()
def export(
    experiment: ExperimentName,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the job folder.")],
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", "-a", help="An algorithm, or 'all' for the paper's, one after another."),
    ] = None,
    rounds: Rounds = None,
    seed: Seed = None,
    min_clients: Annotated[
        int | None, typer.Option(min=1, help="How many sites the job and each round need. (default: all)")
    ] = None,
    changes: Changes = None,
    out: Annotated[
        str | None,
        typer.Option(help="The run's name in the server's folder of runs; a run there is continued."),
    ] = None,
    timeout: Annotated[int, typer.Option(min=1, help="The time for each task of a site, in seconds.")] = 600,
    join_timeout: Annotated[
        int, typer.Option(min=1, help="The time for a site to load its examples, in seconds.")
    ] = 600,
    wire: WireName = "exact",
    data_dir: DataDir = None,
) -> None:
    """Write an experiment as a job folder, for `nvflare job submit` or the admin console."""
    _refuse_study(experiment)
    from fedilc.runtimes.nvflare import require_nvflare

    require_nvflare()
    from fedilc.runtimes.nvflare.recipe import FedILCRecipe
    from fedilc.runtimes.remote.manifest import find_wire

    use_data_folder(data_dir)
    recipe = FedILCRecipe(
        experiment,
        min_clients,
        algorithm=only_one(algorithm, "a job"),
        changes=[*(changes or []), *as_changes({"rounds": rounds, "seed": seed})],
        out=out,
        timeout=timeout,
        join_timeout=join_timeout,
        wire=find_wire(wire),
    )
    place = recipe.write(folder)
    needed = "all" if recipe.needed == len(recipe.silos) else f"at least {recipe.needed}"
    lines = [
        f"job folder: {place}",
        f"silos: {', '.join(recipe.silos)} ({needed} needed)",
        f"run folder, in the server's fedilc-runs: {recipe.run_name}",
    ]
    say(make_console(), "\n".join(lines))


@flower_app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create.")],
    experiment: ExperimentName = "color-digits",
) -> None:
    """Write an app folder for `flwr run`; then fill in make_silo in its client_app.py."""
    _refuse_study(experiment)
    from fedilc.runtimes.flower.template import new_app

    silos = new_app(folder, experiment)
    options = f'--federation-config "num-supernodes={silos} client-resources-num-cpus=1"'
    sys.stdout.write(f"made {folder}: fill in make_silo in {folder / 'client_app.py'}\n")
    sys.stdout.write(f"simulate: flwr run {folder} --stream {options}\n")
    if importlib.util.find_spec("flwr") is None:
        sys.stdout.write("Flower is not installed here: pip install 'fedilc[flower]'\n")
