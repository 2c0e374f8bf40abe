"""Options as the command line spells them.

The package's errors, warnings and notes name options between backticks, as Python and TOML write them:
`resume=True`, `missing = ["-9"]`. Commands print such a text with the flags of the command that runs. An
option that this command does not have stays as it is: it belongs in the experiment's file.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from typer.core import TyperGroup

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
    """Print options as they are from here on, since they belong in a file and not on this command line."""
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
    """Return what follows a flag, once per time that it is given."""
    try:
        found = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return [value]
    if isinstance(found, dict):
        found = [f"{key}={','.join(names)}" for key, names in found.items()]
    return list(map(shlex.quote, found)) if isinstance(found, list) else [value]
