"""Arguments and options that several subcommands share, and options in errors written as flags."""

from __future__ import annotations

import csv
import inspect
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedilc.errors import ConfigError

_OPTION = re.compile(r"`([a-z_][a-z_.]*)(?: ?= ?([^`]*))?`")
_flags: dict[str, str] = {}  # of the command that runs, by option


class FlagGroup(TyperGroup):
    """The group of all commands; it finds out which of them runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line."""
        _, command = find_command(self, args)
        _flags.clear()
        _flags.update({option.name: option.opts[0] for option in command.params if option.opts[0][0] == "-"})
        return super().parse_args(ctx, args)


def find_command(group: Any, words: Sequence[str]) -> tuple[list[str], Any]:
    """Return the subcommands at the start of a command line, and the last of them."""
    names, here = [], group
    for word in words:
        known = getattr(here, "commands", {})
        if word not in known:
            break
        names.append(word)
        here = known[word]
    return names, here


def forget_flags() -> None:
    """Print options as they are from here on, because they belong in a file and not on this command line."""
    _flags.clear()


def with_flags(text: str) -> str:
    """Return a text with the options in it as flags of the command that runs."""
    return _OPTION.sub(lambda found: _spelled(found[1], found[2]) or found[0], text)


def as_flags(settings: Iterable[tuple[str, str]]) -> str:
    """Return settings as they are typed in a shell.

    >>> as_flags([("drop", "length of stay"), ("missing", "-9999")])
    "--drop 'length of stay' --missing -9999"
    """
    return shlex.join(
        word for setting, value in settings for word in (f"--{setting.replace('_', '-')}", value)
    )


def _spelled(name: str, value: str | None) -> str:
    # A list is one option that may repeat, so its name is singular: exclude_sites is --exclude-site.
    flag = _flags.get(name) or _flags.get(name.removesuffix("s"))
    if flag is None:
        is_setting = "." in name and value is not None and "--set" in _flags.values()
        return f"--set {shlex.quote(f'{name}={value}')}" if is_setting else ""
    if value is None or value in ("True", "true"):
        return flag
    return " ".join(f"{flag} {word}" for word in _words(value))


def _words(value: str) -> list[str]:
    """Return the values of a flag, one for each time that it is given."""
    try:
        found = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return [value]
    if isinstance(found, dict):
        found = [f"{key}={','.join(names)}" for key, names in found.items()]
    return list(map(shlex.quote, found)) if isinstance(found, list) else [value]


Names = list[str] | None
ExperimentName = Annotated[
    str, typer.Argument(help="A shipped experiment, as `fedilc list` names it, or a TOML file.")
]
Rounds = Annotated[int | None, typer.Option(help="The number of rounds. (default: as in the experiment)")]
Seed = Annotated[
    int | None, typer.Option(help="The seed of all random choices. (default: as in the experiment)")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the experiment; may repeat."),
]
OnDivergence = Annotated[
    str | None,
    typer.Option(help="What to do if weights become infinite: stop, or exclude outliers. (default: stop)"),
]
Balance = Annotated[
    str | None,
    typer.Option(help="How to balance classes within a silo: none, weights or oversample. (default: none)"),
]
WireName = Annotated[str, typer.Option(help="How to send numbers: exact, or float16 for half the bytes.")]
ModelFunction = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODULE:FUNCTION",
        help="Your own network: a function without arguments, in a module of the working folder.",
    ),
]
BackboneName = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        metavar="NAME|MODULE:FUNCTION",
        help="A frozen pretrained network for pictures, whose features are the inputs: efficientnet-lite0, "
        "or your own function without arguments.",
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
            f"{command} trains one algorithm, but --algorithm was given {len(algorithms)} times; give it once"
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


@dataclass(frozen=True)
class TableOptions:
    """The options of commands that read users' tables."""

    label: Annotated[
        str | None, typer.Option(help="The label's column, or a comparison such as 'num>0'.")
    ] = None
    silo_column: Annotated[
        str | None, typer.Option(help="The column that names silos. (default: each file is a silo)")
    ] = None
    positive: Annotated[str | None, typer.Option(help="The value of the label that counts as 1.")] = None
    categorical: Annotated[Names, typer.Option(help="A column whose numbers are categories; may repeat.")] = (
        None
    )
    categories: Annotated[
        Names,
        typer.Option(
            help="The categories of a column, or the label's classes, such as ward=medical,surgical; may "
            "repeat. (default: those in the data)"
        ),
    ] = None
    columns: Annotated[
        Names, typer.Option(help="Use only these columns, separated by commas; may repeat. (default: all)")
    ] = None
    drop: Annotated[Names, typer.Option(help="A column to leave out; may repeat.")] = None
    exclude_site: Annotated[Names, typer.Option(help="A site to leave out; may repeat.")] = None
    keep: Annotated[
        Names, typer.Option(help="A column to use although it looks like an identifier; may repeat.")
    ] = None
    missing: Annotated[
        Names,
        typer.Option(
            help="A further value that means missing, such as -9, or job=8,9 for one column; may repeat."
        ),
    ] = None

    patient_column: Annotated[
        str | None,
        typer.Option(help="The column that names patients, if a patient may have several rows; no input."),
    ] = None
    min_category: Annotated[
        int | None,
        typer.Option(min=1, help="How many rows of a silo a category or a sum needs. (default: 10)"),
    ] = None
    round_survey: Annotated[
        int | None, typer.Option(min=2, help="Round silos' counts and sums to this unit. (default: exact)")
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
            f"--categories {text!r} is not a column and its categories, such as ward=medical,surgical"
        )
    return column, listed
