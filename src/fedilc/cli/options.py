"""Arguments and options that several subcommands take."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from fedilc.errors import ConfigError

ExperimentName = Annotated[
    str, typer.Argument(help="A shipped experiment, as `fedilc list` names it, or a TOML file.")
]
Rounds = Annotated[int | None, typer.Option(help="How many rounds. (default: as in the experiment)")]
Seed = Annotated[
    int | None, typer.Option(help="The seed of all random choices. (default: as in the experiment)")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the experiment; may repeat."),
]
OnDivergence = Annotated[
    str | None,
    typer.Option(help="If weights become infinite: stop, or exclude silos that stand out. (default: stop)"),
]
Balance = Annotated[
    str | None,
    typer.Option(help="Let all classes of a silo count equally: none, weights, oversample. (default: none)"),
]
WireName = Annotated[
    str, typer.Option(help="How numbers are sent: exact, or float16, which halves the bytes.")
]
ModelFunction = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODULE:FUNCTION",
        help="Your own network: a function without arguments, in a module of the working folder.",
    ),
]
RunFolderPath = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
RunFolderOrUrl = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The run folder, or a URL where `serve --view` publishes it."),
]
SiloTokenFile = Annotated[Path | None, typer.Option(help="A file with a silo's token, for a URL.")]
Authority = Annotated[Path | None, typer.Option(help="The certificate of the authority to trust, for a URL.")]
Criterion = Annotated[
    str,
    typer.Option(help="The round to use: validation or oracle (lowest validation or test loss), or last."),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="The folder of the data sets. (default: FEDILC_DATA, or one in the user's cache)"),
]


def use_data_folder(given: Path | None) -> None:
    """Use this data folder, if one is given, in this command and in every process it starts."""
    if given is not None:
        os.environ["FEDILC_DATA"] = str(given.expanduser().absolute())


def not_a_file(folder: Path | None) -> Path | None:
    """Return the folder for results; raise if it is a file, which may be the user's table."""
    if folder is not None and folder.is_file():
        raise ConfigError(f"--out {folder} is a file; name a folder for the results")
    return folder


def comma_numbers(text: str | None, option: str, *, zero: bool = False) -> tuple[float, ...]:
    """Return the numbers of an option, each once and in ascending order; none if it was not given.

    >>> comma_numbers("1,0.1,1", "--learning-rates")
    (0.1, 1.0)
    """
    if text is None:
        return ()
    try:
        found = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is not a list of numbers like 0.01,0.1") from error
    if not all(0 < number < inf or (zero and number == 0) for number in found):
        raise ConfigError(f"{option} {text!r} has a number that is not {'0 or ' if zero else ''}above 0")
    return found


def only_one(algorithms: list[str] | None, command: str) -> str | None:
    """Return the one algorithm given, or None; several are refused, not dropped.

    >>> only_one(["fedsgd"], "serve"), only_one(None, "serve")
    ('fedsgd', None)
    """
    if algorithms and len(algorithms) > 1:
        raise ConfigError(
            f"{command} trains one algorithm, and --algorithm was given {len(algorithms)} times; give it once"
        )
    return algorithms[0] if algorithms else None


def refuse_given(why: str, given: Mapping[str, object]) -> None:
    """Raise if an option was given that has no effect here.

    >>> refuse_given("--view only shows a run folder", {"--rounds": None, "--seed": 1})
    Traceback (most recent call last):
    fedilc.errors.ConfigError: --view only shows a run folder; leave out --seed
    """
    for option, value in given.items():
        if value is not None:
            raise ConfigError(f"{why}; leave out {option}")


def given_among(names: Collection[str], context: typer.Context) -> dict[str, object]:
    """Return those of the named options that are on the command line; an argument is "the experiment"."""
    given = {
        parameter.opts[0] if parameter.opts[0].startswith("-") else f"the {parameter.name}": parameter.name
        for parameter in context.command.params
        if getattr(context.get_parameter_source(str(parameter.name)), "name", "") == "COMMANDLINE"
    }
    return {name: context.params[str(key)] for name, key in given.items() if name in names}


def as_changes(given: Mapping[str, object]) -> list[str]:
    """Return options that stand for settings in the form of `--set`; options not given are left out.

    >>> as_changes({"rounds": 3, "seed": None})
    ['rounds=3']
    """
    return [f"{key}={value}" for key, value in given.items() if value is not None]
