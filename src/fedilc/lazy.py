"""Names of a package that are loaded when they are asked for, so that the command starts at once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def lazily(
    package: str, homes: Mapping[str, str], require: Callable[[], None] | None = None
) -> Callable[[str], Any]:
    """Return a package's `__getattr__` that loads names from other modules on first use.

    `require` is called before one of these is loaded; it raises where what they need is not installed.

    >>> lazily("fedilc", {"seed_for": "fedilc.seeds"})("seed_of")
    Traceback (most recent call last):
    AttributeError: module 'fedilc' has no attribute 'seed_of'
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if require is not None:
            require()
        return getattr(import_module(homes[name]), name)

    return load


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import modules without garbage collection, which takes a quarter of the time and finds nothing.

    If any were loaded, later collections leave out all that is in memory now.
    """
    enabled, loaded = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > loaded:
            gc.freeze()
        if enabled:
            gc.enable()
