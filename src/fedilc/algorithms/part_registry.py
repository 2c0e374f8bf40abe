"""Find parts of an algorithm (aggregations, penalties) by name, and their options; needs no torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fedilc.errors import ConfigError, nearest

Part = TypeVar("Part")


@dataclass(frozen=True)
class PartRegistry(Generic[Part]):
    """One kind of part: what it is called in errors, its base class, and its classes by name.

    >>> numbers = PartRegistry[int]("number", int, {"one": lambda: 1})
    >>> numbers.build("one"), numbers.build(5), numbers.options("one")
    (1, 5, ())
    >>> numbers.build("one", base=2)
    Traceback (most recent call last):
    fedilc.errors.ConfigError: number 'one' has no option 'base'; it takes none
    """

    kind: str
    base: type[Any]
    classes: Mapping[str, Callable[..., Part]]

    def options(self, choice: str | Part) -> tuple[str, ...]:
        """Return the names of the options that a part takes; an object takes none."""
        if isinstance(choice, self.base):
            return ()
        name = str(choice)
        if name not in self.classes:
            raise ConfigError(f"{self.kind} {name!r} is unknown{nearest(name, self.classes)}")
        return tuple(inspect.signature(self.classes[name]).parameters)

    def build(self, choice: str | Part, **options: Any) -> Part:
        """Return the part of a name with these options, or the object given; refuse unknown options."""
        known = self.options(choice)
        for key in options:
            if key not in known:
                name = repr(choice) if isinstance(choice, str) else type(choice).__name__
                takes = f"takes {', '.join(known)}" if known else "takes none"
                raise ConfigError(f"{self.kind} {name} has no option {key!r}; it {takes}")
        return self.classes[choice](**options) if isinstance(choice, str) else choice
