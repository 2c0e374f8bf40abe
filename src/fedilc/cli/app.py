"""The command `fedilc`: its subcommands, and how errors and warnings are reported."""

from __future__ import annotations

import errno
import sys
import warnings
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from fedilc import __version__
from fedilc.cli.check import check
from fedilc.cli.data import data_app
from fedilc.cli.engines import flower_app, nvflare_app
from fedilc.cli.inspect import inspect
from fedilc.cli.join import join
from fedilc.cli.key import key_app
from fedilc.cli.list import list_
from fedilc.cli.options import FlagGroup, find_command, with_flags
from fedilc.cli.predict import evaluate, export, predict
from fedilc.cli.report import report
from fedilc.cli.run import run
from fedilc.cli.serve import serve
from fedilc.cli.study import study
from fedilc.cli.token import token
from fedilc.errors import FedILCError, FedILCWarning, StoppedError, printable

app = typer.Typer(
    help="Train one model over silos that cannot share data, so that it works at a new site.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    cls=FlagGroup,
)

COMMANDS = "fedilc.commands"  # entry points: functions that add their commands to the app

_MACHINE_FAULTS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
    *(errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.ENOMEM),
)

_REPORT = ("matplotlib", "PIL", "scipy")  # imported late, at many places


def main() -> None:
    """Run the command; a user's mistake is one sentence and exit code 2, Ctrl-C is 130."""
    warnings.showwarning = _say_warning
    try:
        code = app(standalone_mode=False)
    except FedILCError as error:
        _say(str(error))
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _REPORT:
            raise
        _say(f"this needs {error.name}, which is not installed; run pip install 'fedilc[report]'")
        sys.exit(2)
    except StoppedError as error:
        _say(str(error))
        sys.exit(130)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except OSError as error:
        if error.errno not in _MACHINE_FAULTS:
            raise
        _say(f"{error.strerror}{f': {error.filename}' if error.filename else ''}; fix that and start again")
        sys.exit(2)
    except Exception as error:
        # Usage errors of typer; the module of their base class depends on its version.
        if not hasattr(error, "format_message"):
            raise
        if error.format_message():
            _say(f"{error.format_message()} ({_command()} --help explains)")
        sys.exit(2)
    if code == 130:
        _say("interrupted")
    sys.exit(code)


def _command() -> str:
    """Return the command and subcommands that were given correctly, for the help hint."""
    names, _ = find_command(typer.main.get_command(app), sys.argv[1:])
    return " ".join(["fedilc", *names])


def _say(sentence: str) -> None:
    sys.stderr.write(f"fedilc: {printable(with_flags(sentence))}\n")


_show_other_warning = warnings.showwarning


def _say_warning(message: Warning | str, category: type[Warning], *where: Any, **to: Any) -> None:
    if issubclass(category, FedILCWarning):
        _say(f"note: {message}")
    else:
        _show_other_warning(message, category, *where, **to)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"fedilc {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


_COMMANDS = {
    "Train": (run, check, list_, data_app),
    "Compare sites": (study, inspect),
    "Use a run": (report, predict, evaluate, export),
    "Train across machines": (serve, join, token, key_app, nvflare_app, flower_app),
}
for _panel, _entries in _COMMANDS.items():
    for _entry in _entries:
        if isinstance(_entry, typer.Typer):
            app.add_typer(_entry, rich_help_panel=_panel)
        else:
            app.command(_entry.__name__.rstrip("_"), rich_help_panel=_panel)(_entry)
for _plugin in entry_points(group=COMMANDS):
    _plugin.load()(app)
