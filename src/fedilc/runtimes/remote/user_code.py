"""Functions of the user's own, which the user names; nothing here is named by what came over the network."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedilc.errors import ConfigError, FedILCError


def find_function(name: str, option: str) -> Callable[..., Any]:
    """A function given as `module:function`, from the working folder or an installed package."""
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        raise ConfigError(f"{option} {name!r} is not of the form module:function")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except Exception as error:
        raise ConfigError(f"{option} {name!r} cannot be imported: {_said(error)}") from error
    made: Callable[..., Any] | None = getattr(found, function, None)
    if not callable(made):
        raise ConfigError(f"{option} {name!r}: module {module!r} has no function {function!r}")
    return made


def call_own(function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """What the function gives; what it raises becomes one sentence with the place where it did."""
    try:
        return function(*arguments)
    except FedILCError:
        raise
    except Exception as error:
        raise ConfigError(f"{name} failed: {_said(error)}") from error


def _said(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if "importlib" in place.filename else f" ({Path(place.filename).name}, line {place.lineno})"
    return f"{type(error).__name__}: {error}{where}"
