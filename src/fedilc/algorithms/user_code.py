"""Find and call functions that the user of this machine names as `module:function`.

A message over a network never names one. This file needs no torch.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedilc.errors import ConfigError, FedILCError


def code_digest(builder: str, option: str = "model") -> str:
    """Return the SHA-256 of the source of the module that a `module:function` is in.

    What that module imports is not part of it.
    """
    find_function(builder, option)
    module = sys.modules[builder.partition(":")[0]]
    try:
        return hashlib.sha256(inspect.getsource(module).encode()).hexdigest()
    except (OSError, TypeError) as error:
        raise ConfigError(
            f"{option} {builder!r} is in a module without source, so that its code cannot be named by a "
            "digest; put the function into a Python file"
        ) from error


def find_function(name: str, option: str) -> Callable[..., Any]:
    """Return a function given as `module:function`, from the working folder or an installed package."""
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        raise ConfigError(f"{option} {name!r} is not of the form module:function")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        imported = importlib.import_module(module)
    except Exception as error:
        raise ConfigError(f"{option} {name!r} cannot be imported: {_describe(error)}") from error
    named: Callable[..., Any] | None = getattr(imported, function, None)
    if not callable(named):
        raise ConfigError(f"{option} {name!r}: module {module!r} has no function {function!r}")
    return named


def call_user_code(function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """Call a function; turn an error into one sentence with file and line."""
    try:
        return function(*arguments)
    except FedILCError:
        raise
    except Exception as error:
        raise ConfigError(f"{name} failed: {_describe(error)}") from error


def _describe(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if "importlib" in place.filename else f" ({Path(place.filename).name}, line {place.lineno})"
    return f"{type(error).__name__}: {error}{where}"
